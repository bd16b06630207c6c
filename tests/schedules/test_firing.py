"""Ticks that are due: each fires once, and those that were missed by the policy of the schedule."""

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue.models import Job, Schedule, ScheduleTick
from jobqueue.schedules import versions
from jobqueue.signals import schedule_missed
from jobqueue.testing import drain, run_task, travel
from jobqueue.transitions import ack
from tests.app import tasks
from tests.factories import claim_one
from tests.marks import finding
from tests.schedules.helpers import USING, begin, fire, jobs, minutes, outcomes, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


@pytest.fixture
def missed():
    """What the signal schedule_missed was sent with: (ticks, reason)."""
    found = []

    def note(sender, **values):
        found.append((values["ticks"], values["reason"]))

    schedule_missed.connect(note)
    yield found
    schedule_missed.disconnect(note)


def test_the_first_tick_is_the_first_one_after_the_schedule_was_seen():
    found = begin(every=60)
    assert found.next_at - found.decided_until <= timedelta(seconds=60)
    assert found.next_at.second == found.next_at.microsecond == 0
    assert fire() == 0


def test_a_tick_adds_one_job_with_the_arguments_and_the_tick():
    due = begin(every=60).next_at
    with travel(to=due):
        assert [fire(), fire()] == [1, 0]
    job = Job.objects.get()
    assert (job.task, job.payload) == ("tests.app.tasks.add", {"args": [1, 2], "kwargs": {}})
    assert jobs() == [due.isoformat()]
    assert (row().last_tick_at, row().last_job_id, outcomes()) == (due, job.pk, [("fired", 1)])
    assert row().next_at == due + minutes(1)


def test_a_running_job_can_ask_for_its_tick():
    due = begin(task=tasks.tell_tick, args=(), every=60).next_at
    with travel(to=due):
        fire()
        drain()
    assert Job.objects.get().result == due.isoformat()


def test_a_job_that_no_schedule_has_added_has_no_tick():
    assert run_task(tasks.tell_tick) is None


@pytest.mark.parametrize(
    ("policy", "added", "left_out"),
    [("latest", 1, [("missed", 9), ("fired", 1)]), ("skip", 0, [("missed", 10)]), ("all", 10, [("fired", 1)] * 10)],
)
def test_ticks_at_which_no_worker_ran_are_fired_by_the_policy(policy, added, left_out, missed):
    due = begin(every="10m", missed=policy).next_at
    with travel(to=due + minutes(95)):
        assert [fire(), fire()] == [added, 0]
    assert outcomes() == left_out
    assert sum(ticks for ticks, reason in missed) == 10 - added
    assert row().next_at == due + minutes(100)


def test_a_tick_that_is_a_little_late_is_not_missed():
    due = begin(every="10m", missed="skip").next_at
    with travel(to=due + timedelta(seconds=50)):
        assert fire() == 1


def test_of_all_missed_ticks_the_newest_fire_up_to_the_limit_in_their_order():
    due = begin(every=60, missed="all", missed_limit=120).next_at
    with travel(to=due + minutes(199)):
        assert fire() == 120
    assert jobs() == [(due + minutes(80 + n)).isoformat() for n in range(120)]
    assert outcomes()[0] == ("missed", 80)


def test_with_overlap_skip_a_tick_is_left_out_while_the_job_before_it_has_not_ended():
    due = begin(every=60, overlap="skip").next_at
    with travel(to=due) as clock:
        assert fire() == 1
        clock.reach(due + minutes(1))
        assert fire() == 0
        lease = claim_one("default")
        clock.reach(due + minutes(2))
        assert fire() == 0
        ack(lease)
        clock.reach(due + minutes(3))
        assert fire() == 1
    assert [outcome for outcome, _ in outcomes()] == ["fired", "skipped", "skipped", "fired"]


def test_with_overlap_queue_each_tick_fires_when_the_job_before_it_has_ended():
    due = begin(every=60, overlap="queue").next_at
    with travel(to=due) as clock:
        for minute in range(3):
            clock.reach(due + minutes(minute))
            fire()
        assert jobs() == [due.isoformat()]
        for _ in range(2):
            ack(claim_one("default"))
            clock.forward(2)
            assert fire() == 1
        ack(claim_one("default"))
    assert jobs() == [(due + minutes(minute)).isoformat() for minute in range(3)]
    assert row().waiting_at is None
    assert row().look_at == row().next_at


def test_with_overlap_queue_no_more_ticks_wait_than_may_be_missed(missed):
    due = begin(every=60, overlap="queue", missed_limit=3).next_at
    with travel(to=due) as clock:
        for minute in range(6):
            clock.reach(due + minutes(minute))
            fire()
    assert [outcome for outcome, _ in outcomes()] == ["fired", "missed", "missed", "waiting", "waiting", "waiting"]
    assert missed == [(1, "overlap")] * 2


def test_jitter_makes_a_job_due_later_by_the_same_time_in_every_process():
    from jobqueue.schedules.deciding import jitter_of

    due = begin(every=3600, jitter_seconds=600).next_at
    with travel(to=due):
        fire()
    later = Job.objects.get().run_at - due
    assert timedelta(0) < later < minutes(10)
    assert later.total_seconds() == pytest.approx(jitter_of("tick", due, 600), abs=1e-3)


def test_a_schedule_ends_after_its_last_tick():
    first = begin(every=60).next_at
    begin(name="short", every=60, end_at=first + minutes(1))
    with travel(to=first + minutes(1)):
        fire()
    assert row("short").next_at is None
    assert row("short").look_at is None


@finding("S-B3")
def test_a_tick_whose_key_a_job_that_has_ended_still_holds_is_skipped_and_told(missed, caplog):
    due = begin(task=tasks.add.using(dedupe_key="one"), every=60).next_at
    with travel(to=due) as clock:
        fire()
        ack(claim_one("default"))
        clock.forward(60)
        assert fire() == 0
    assert outcomes() == [("fired", 1), ("skipped", 1)]
    assert missed == [(1, "duplicate")]
    assert "still holds the dedupe key" in caplog.text


def test_a_full_queue_costs_the_tick_and_says_so(settings, missed, caplog):
    settings.JOBQUEUE = {"QUEUES": {"default": {"MAX_READY": 1}}}
    tasks.add.enqueue(1, 1)
    due = begin(every=60).next_at
    with travel(to=due), caplog.at_level("WARNING"):
        assert fire() == 0
    assert outcomes() == [("refused", 1)]
    assert missed == [(1, "full")]
    assert "missed its tick" in caplog.text


def test_an_error_of_one_schedule_leaves_the_others(monkeypatch, caplog):
    begin(name="wrong", every=60)
    due = begin(every=60).next_at
    Schedule.objects.filter(name="wrong").update(definition={"of": "the future"})
    with travel(to=due):
        assert fire() == 1
    assert "newer" in caplog.text or "version" in caplog.text
    assert outcomes("wrong") == []


def test_when_the_job_cannot_be_added_the_tick_is_not_decided(monkeypatch, caplog):
    due = begin(every=60).next_at

    def broken(*args, **kwargs):
        raise RuntimeError("no")

    with travel(to=due):
        with monkeypatch.context() as patched:
            for place in ("firing.add_many", "deciding.add"):
                patched.setattr(f"jobqueue.schedules.{place}", broken)
            assert fire() == 0
        assert (ScheduleTick.objects.count(), Job.objects.count()) == (0, 0)
        assert "not fired by this worker: RuntimeError: no" in caplog.text
        assert fire() == 1


def test_a_tick_that_was_fired_does_not_fire_again_after_the_clock_of_the_server_was_set_back():
    due = begin(every=60).next_at
    with travel(to=due + minutes(60)):
        assert fire() == 1
    assert row().decided_until > due + minutes(59)
    versions.settle(USING)
    assert row().next_at <= due + minutes(1)
    with travel(to=due + minutes(59)) as clock:
        fire()
        clock.reach(due + minutes(61))
        fire()
    assert len(jobs()) == len(set(jobs()))
    assert (due + minutes(60)).isoformat() in jobs()


def test_a_rollback_of_the_caller_undoes_the_ticks():
    due = begin(every=60).next_at
    with travel(to=due):
        with transaction.atomic():
            fire()
            transaction.set_rollback(True)
        assert Job.objects.count() == 0
        assert fire() == 1


@finding("S-B3")
def test_a_deduplicated_tick_names_the_job_that_holds_the_key(missed):
    task = tasks.add.using(dedupe_key="one")
    due = begin(task=task, every=60).next_at
    with travel(to=due) as clock:
        fire()
        clock.forward(60)
        fire()
    assert Job.objects.count() == 1
    assert outcomes() == [("fired", 1), ("skipped", 1)]
    assert row().last_tick_at == due
    # As with overlap="skip": the job before it has not ended.
    assert missed == []
    assert {*ScheduleTick.objects.exclude(job_id=None).values_list("job_id", flat=True)} == {Job.objects.get().pk}
