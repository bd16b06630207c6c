"""Many schedules in one look of a worker: what is wrong with one, or locks it, leaves the others alone."""

from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta

import pytest

from jobqueue.db.clock import read_now
from jobqueue.exceptions import DatabaseBusy, InvalidValue
from jobqueue.models import Job, Schedule, ScheduleTick, ScheduleVersion
from jobqueue.schedules import enable, firing, known, preview, versions
from jobqueue.schedules.declaring import declare
from jobqueue.schedules.timing import Interval
from jobqueue.signals import job_enqueued, schedule_missed
from jobqueue.testing import travel
from tests.app import tasks
from tests.marks import finding
from tests.schedules.helpers import USING, begin, fire, minutes, outcomes, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]
ZONE = "America/Unknown"


@pytest.fixture
def heard():
    """What the signals schedule_missed and job_enqueued were sent for."""
    found = []

    def missed(sender, **values):
        found.append((values["name"], values["ticks"], values["reason"]))

    def enqueued(sender, **values):
        found.append(values["job_id"])

    schedule_missed.connect(missed)
    job_enqueued.connect(enqueued)
    yield found
    schedule_missed.disconnect(missed)
    job_enqueued.disconnect(enqueued)


def damage(name, **timing):
    """Let a schedule be due, and have another timing in its definition, as another image wrote it."""
    definition = row(name).definition
    definition["timing"] = timing or "another shape"
    Schedule.objects.filter(name=name).update(definition=definition)


def announced():
    versions.keep_announced([*ScheduleVersion.objects.values_list("pk", flat=True)], USING)


@contextmanager
def due_together(count):
    """A block at whose beginning so many schedules are due, all by the same tick."""
    # At the beginning of an hour: declaring them takes long on a busy machine, and must not reach into the next one.
    with travel(to=Interval(3600).after(read_now(USING))) as clock:
        for number in range(count):
            declare(f"tick {number}", tasks.add, (number, 2), None, {"every": 3600}, "code")
        versions.announce(USING)
        clock.move_to(Schedule.objects.first().next_at)
        announced()
        yield


@finding("S-A1")
@pytest.mark.parametrize(
    "timing", [{"cron": "0 3 * * *", "timezone": ZONE}, {}, {"every_seconds": 0}, {"cron": 3}, {"every_seconds": "1"}]
)
def test_a_schedule_that_a_worker_cannot_calculate_leaves_the_others(timing, caplog):
    begin(name="wrong", every=30)
    due = begin(every=60).next_at
    damage("wrong", **timing)
    with travel(to=due):
        announced()
        assert firing.fire_due(USING).jobs == 1
    assert "schedule 'wrong' not fired by this worker" in caplog.text
    assert outcomes("wrong") == []
    # Another worker may be able to.
    assert row("wrong").look_at < due


def test_a_schedule_that_cannot_be_calculated_is_logged_once_and_tried_when_its_definition_changes(caplog):
    looks = firing.Looks()
    due = begin(name="wrong", every=60).next_at
    right = row("wrong").definition
    damage("wrong", cron="0 3 * * *", timezone=ZONE)
    with travel(to=due):
        announced()
        for _ in range(5):
            assert firing.fire_due(USING, looks) == (0, False)
        assert caplog.text.count("not fired by this worker") == 1
        Schedule.objects.update(definition=right, digest="corrected")
        assert firing.fire_due(USING, looks).jobs == 1


@finding("S-B9")
def test_more_schedules_than_one_look_has_room_for_that_cannot_be_calculated_keep_none_from_firing(monkeypatch):
    monkeypatch.setattr(firing, "_PAGE", 50, raising=False)
    due = begin(name="wrong 0", every=60).next_at
    wrong = Schedule.objects.get()
    # As a newer package writes it.
    wrong.definition["timing"] |= {"mood": "good"}
    wrong.save()
    wrong.look_at = due - timedelta(seconds=30)
    copies = [copy(wrong) for _ in range(120)]
    for number, one in enumerate(copies):
        one.pk, one.name = None, f"wrong {number + 1}"
    Schedule.objects.bulk_create(copies)
    begin(every=60)
    with travel(to=due):
        announced()
        Schedule.objects.update(announced_at=read_now(USING))
        jobs = sum(firing.fire_due(USING).jobs for _ in range(30))
    assert jobs == 1
    assert outcomes() == [("fired", 1)]


@finding("S-A1")
@pytest.mark.parametrize("call", [preview, enable])
def test_a_zone_that_is_not_known_is_refused_in_words(call):
    begin(every=60)
    damage("tick", cron="0 3 * * *", timezone=ZONE)
    Schedule.objects.update(enabled=False)
    with pytest.raises(InvalidValue, match="tzdata"):
        call("tick")


def test_a_schedule_that_cannot_be_read_is_listed_with_the_others():
    begin(name="wrong", every=60)
    begin(every=60)
    damage("wrong")
    assert {one.name: bool(one.problem) for one in known()} == {"tick": False, "wrong": True}


def test_a_schedule_whose_key_is_in_an_open_transaction_is_put_off_and_the_others_fire(monkeypatch, heard, caplog):
    """What add() raises then; tests/races has the transaction."""
    due = begin(name="key", task=tasks.add.using(ordering_key="k"), every=10).next_at
    begin(every=60)

    def busy(*args, key_wait_seconds, **kwargs):
        assert key_wait_seconds <= 1
        raise DatabaseBusy("open")

    monkeypatch.setattr("jobqueue.schedules.deciding.add", busy)
    with travel(to=due + minutes(2)) as clock:
        announced()
        jobs = [firing.fire_due(USING).jobs for _ in range(3)]
        assert (sum(jobs), outcomes("key")) == (1, [])
        # Nothing was written, so nothing was missed.
        assert not [one for one in heard if isinstance(one, tuple) and one[0] == "key"]
        assert "'key' missed" not in caplog.text
        assert row("key").look_at > read_now(USING)
        assert row("key").next_at == due
        monkeypatch.undo()
        clock.forward(firing.BUSY_SECONDS_MAX)
        assert fire() > 0
    assert outcomes("key")[0][0] == "missed"
    assert "'key' missed" in caplog.text


@finding("S-A2")
def test_signals_and_log_lines_of_a_tick_follow_the_commit(monkeypatch, heard, caplog):
    due = begin(every=60).next_at
    save = Schedule.objects.none().update.__func__

    def broken(self, **changes):
        if isinstance(self, Schedule) or self.model is Schedule:
            raise RuntimeError("rolled back")
        return save(self, **changes)

    with travel(to=due + minutes(10)):
        announced()
        with monkeypatch.context() as patched:
            patched.setattr(type(Schedule.objects.none()), "update", broken)
            patched.setattr(Schedule, "save", broken)
            with suppress(RuntimeError):
                firing.fire_due(USING)
        assert (Job.objects.count(), ScheduleTick.objects.count(), heard) == (0, 0, [])
        assert "missed" not in caplog.text
        assert fire() == 1
    assert {*heard} == {("tick", 10, "late"), Job.objects.get().pk}
    assert len(heard) == 2
    assert "missed 10 ticks" in caplog.text


@finding("S-A6")
def test_a_thousand_schedules_at_one_minute_take_a_few_statements_for_each_hundred(
    django_assert_max_num_queries, monkeypatch
):
    # A busy machine may need more than the second of one look, and each look begins with statements of its own.
    monkeypatch.setattr(firing, "_LOOK_SECONDS", 3600.0)
    with due_together(1000), django_assert_max_num_queries(10 * 14 + 10):
        assert fire() == 1000
    jobs = {job.pk: job.payload["args"][0] for job in Job.objects.all()}
    ticks = dict(ScheduleTick.objects.values_list("schedule_id", "job_id"))
    assert sorted(jobs.values()) == [*range(1000)]
    for one in Schedule.objects.all():
        assert jobs[ticks[one.pk]] == int(one.name.removeprefix("tick "))
        assert one.last_job_id == ticks[one.pk]
        assert one.next_at == one.last_tick_at + timedelta(hours=1)


def test_a_look_that_has_no_time_for_all_says_that_there_is_more(monkeypatch):
    with due_together(firing._TOGETHER + 1):
        with monkeypatch.context() as patched:
            patched.setattr(firing, "_LOOK_SECONDS", -1.0)
            assert firing.fire_due(USING) == (0, True)
        # A busy machine may need more than the second of one look for them.
        monkeypatch.setattr(firing, "_LOOK_SECONDS", 3600.0)
        assert firing.fire_due(USING) == (firing._TOGETHER + 1, False)


@pytest.mark.parametrize("missed", ["skip", "latest"])
def test_a_worker_that_is_behind_misses_no_tick_since_its_first_look(missed):
    due = begin(every=60, missed=missed).next_at
    looks = firing.Looks()
    firing.fire_due(USING, looks)
    with travel(to=due + minutes(3)):
        announced()
        assert firing.fire_due(USING, looks).jobs == 4
    assert outcomes() == [("fired", 1)] * 4


def test_a_worker_that_could_not_look_for_a_while_was_not_there(monkeypatch):
    due = begin(every=60, missed="skip").next_at
    looks = firing.Looks()
    firing.fire_due(USING, looks)
    looks.ended -= firing.PAUSE_SECONDS
    with travel(to=due + minutes(3) + timedelta(seconds=1)):
        announced()
        assert firing.fire_due(USING, looks).jobs == 1
    assert outcomes() == [("missed", 3), ("fired", 1)]
