"""Which definition is in force while workers of several versions of the code run."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from jobqueue import schedule, task
from jobqueue.db.clock import UtcNow, UtcNowPlus, read_now
from jobqueue.models import Job, Schedule, ScheduleVersion
from jobqueue.schedules import disable, enable, known, versions
from jobqueue.schedules.declaring import declare, declared, withdraw
from jobqueue.schedules.firing import fire_due
from jobqueue.testing import travel
from jobqueue.worker.child import process
from tests.app import tasks
from tests.marks import finding
from tests.schedules.helpers import USING, begin, fire, jobs, minutes, outcomes, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


def deploy(*, start=True, **given):
    """Other code begins to run: its worker announces the schedule anew, or has none."""
    withdraw("tick")
    if given:
        declare("tick", tasks.add, given.pop("args", (1, 2)), None, given, "code")
    if start:
        return versions.announce(USING)
    return []


def go_on(clock, *announced):
    """More than a minute passes, in which the live workers announce theirs."""
    for _ in range(int(versions.LAPSE_SECONDS / versions.ANNOUNCE_SECONDS) + 1):
        clock.forward(versions.ANNOUNCE_SECONDS)
        for ids in announced:
            versions.keep_announced(ids, USING)
        versions.settle(USING)


def test_what_was_seen_last_is_in_force_while_both_versions_run():
    old = deploy(every=60)
    with travel(1) as clock:
        new = deploy(every=3600)
        for _ in range(5):
            clock.forward(15)
            for ids in (old, new):
                versions.keep_announced(ids, USING)
                versions.settle(USING)
            assert known()[0].every_seconds == 3600


def test_after_a_deploy_was_taken_back_the_old_version_is_in_force_again_within_a_minute_or_so():
    old = deploy(every=60)
    with travel(1) as clock:
        deploy(every=3600)
        go_on(clock, old)
        assert known()[0].every_seconds == 60


def test_a_version_that_comes_back_after_a_pause_is_in_force_at_once():
    deploy(every=60)
    with travel(1) as clock:
        new = deploy(every=3600)
        go_on(clock, new)
        deploy(every=60)
        assert known()[0].every_seconds == 60


@finding("S-C3")
@pytest.mark.parametrize("back", ["old", "new"])
def test_after_an_outage_of_the_database_the_new_version_stays_whichever_worker_is_back_first(back):
    old = deploy(every=60)
    with travel(1) as clock:
        new = deploy(every=3600)
        # Nobody can announce anything meanwhile.
        clock.forward(versions.LAPSE_SECONDS + 5)
        if back == "new":
            versions.keep_announced(new, USING)
            versions.settle(USING)
        # A child of an old worker starts anew.
        deploy(every=60)
        for ids in (new, old):
            versions.keep_announced(ids, USING)
        versions.settle(USING)
        assert known()[0].every_seconds == 3600


def test_ticks_of_before_a_change_fire_and_those_of_the_new_expression_begin_with_it():
    due = begin(every=60).next_at
    with travel(to=due + timedelta(seconds=1)):
        deploy(every="7m")
        assert outcomes() == [("fired", 1)]
        assert row().next_at > due
        assert row().next_at.timestamp() % 420 == 0


def test_a_change_of_the_arguments_alone_keeps_the_ticks():
    due = begin(every=60).next_at
    with travel(to=due):
        deploy(every=60, args=(3, 4))
        assert row().next_at == due
        assert fire() == 1
    assert Job.objects.get().payload["args"] == [3, 4]


def test_what_nobody_has_announced_for_ten_minutes_is_not_fired_and_is_retired(caplog):
    due = begin(every=60).next_at
    with travel(to=due + minutes(11)):
        assert fire_due(USING).jobs == 0
        assert versions.retire(USING) == ["tick"]
        assert versions.retire(USING) == []
    assert row().next_at is None
    assert known()[0].retired_at is not None
    assert "retired" in caplog.text


def test_a_schedule_that_is_declared_again_after_it_was_retired_begins_anew():
    due = begin(every=60).next_at
    with travel(to=due + minutes(30)):
        versions.retire(USING)
        deploy(every=60)
        assert known()[0].retired_at is None
        assert fire() == 0
        assert row().next_at > due + minutes(30)


def test_after_an_hour_without_any_worker_the_missed_tick_fires_when_they_run_again():
    due = begin(every="10m").next_at
    with travel(to=due + minutes(60)):
        deploy(every="10m")
        assert fire() == 1
    assert outcomes() == [("missed", 6), ("fired", 1)]


def test_what_was_made_by_hand_is_not_retired():
    due = begin(every=60).next_at
    Schedule.objects.update(source=Schedule.Source.ADMIN)
    with travel(to=due + minutes(60)):
        assert versions.retire(USING) == []
        assert fire() == 1


def test_what_was_changed_by_hand_stays_in_force_over_a_deploy_which_says_so(caplog):
    begin(every=60)
    Schedule.objects.update(edited=True, edited_by="operator")
    with travel(1):
        deploy(every=3600)
    assert (known()[0].every_seconds, known()[0].differs) == (60, True)
    assert "changed by hand (operator)" in caplog.text


@finding("S-A1")
def test_a_row_that_cannot_be_put_in_force_leaves_the_others(caplog, monkeypatch):
    """The definition in force has a zone that this system does not know, and the code corrects it."""
    begin(name="zone", cron="0 3 * * *", timezone="Europe/London")
    definition = row("zone").definition
    definition["timing"]["timezone"] = "America/Unknown"
    Schedule.objects.filter(name="zone").update(definition=definition, decided_until=UtcNowPlus(-3 * 86_400))
    withdraw("zone")
    declare("zone", tasks.add, (1, 2), None, {"cron": "0 4 * * *", "timezone": "Europe/London"}, "code")
    begin(every=60)
    assert [one.cron for one in known() if one.name == "zone"] == ["0 4 * * *"]
    assert "skipped the last ticks of schedule 'zone'" in caplog.text
    assert row().next_at is not None


def test_a_version_that_this_worker_cannot_calculate_is_left_to_others(caplog):
    begin(name="zone", cron="0 3 * * *", timezone="Europe/London")
    version = ScheduleVersion.objects.get(name="zone")
    version.definition["timing"]["timezone"] = "America/Unknown"
    # The defaults of the columns know nothing of the clock that has travelled.
    now = {"seen_at": UtcNow(), "announced_at": UtcNow()}
    ScheduleVersion.objects.create(name="zone", digest="other", source="code", definition=version.definition, **now)
    declare("new", tasks.add, (1, 2), None, {"every": 60}, "code")
    failing = set()
    versions.announce(USING)
    for _ in range(3):
        versions.settle(USING, failing)
    assert [one.timezone for one in known() if one.name == "zone"] == ["Europe/London"]
    assert row("new").next_at is not None
    assert failing == {"zone"}
    # announce() logs it, and then the first of the three.
    assert caplog.text.count("'America/Unknown' is not known to this system") == 2


@finding("S-A6")
def test_what_workers_announce_of_a_thousand_schedules_takes_few_statements(django_assert_max_num_queries):
    for number in range(1000):
        declare(f"tick {number}", tasks.add, (1, 2), None, {"every": 60}, "code")
    with django_assert_max_num_queries(90):
        versions.announce(USING)
    assert Schedule.objects.count() == ScheduleVersion.objects.count() == 1000
    # On a busy machine the first one was so long ago that the rows are written again.
    with django_assert_max_num_queries(50):
        assert len(versions.announce(USING)) == 1000


@pytest.mark.parametrize("ahead", [pytest.param("end", marks=finding("S-C2")), "interval"])
def test_after_the_clock_was_months_ahead_schedules_go_on(ahead):
    now = read_now(USING)
    until = {"end_at": now + timedelta(days=30)} if ahead == "end" else {}
    begin(every=60, **until)
    with travel(86_400 * 90):
        fire()
    versions.settle(USING)
    assert row().next_at is not None
    assert row().next_at - now < timedelta(minutes=2)


def test_a_disabled_schedule_stays_disabled_over_a_deploy():
    begin(every=60)
    assert disable("tick", reason="too loud")
    with travel(1):
        deploy(every=3600)
    assert (known()[0].enabled, known()[0].next_at, known()[0].every_seconds) == (False, None, 3600)
    assert enable("tick")
    assert row().next_at is not None


def test_many_workers_that_announce_the_same_write_it_once(django_assert_num_queries):
    ids = deploy(every=60)
    with travel(versions.ANNOUNCE_SECONDS):
        versions.keep_announced(ids, USING)
        before = ScheduleVersion.objects.get().announced_at
        versions.keep_announced(ids, USING)
        assert ScheduleVersion.objects.get().announced_at == before


def test_a_schedule_whose_key_cannot_be_computed_is_left_out_and_the_others_are_announced(caplog):
    def broken(a, b):
        raise RuntimeError("no key")

    declare("wrong", tasks.add.using(dedupe_key=broken), (1, 2), None, {"every": 60}, "code")
    begin(every=60)
    assert [one.name for one in known()] == ["tick"]
    assert "no key" in caplog.text


def test_key_functions_are_called_where_the_schedule_is_announced():
    begin(task=tasks.add.using(dedupe_key=lambda a, b: f"{a}-{b}"), every=60)
    withdraw("tick")
    with travel(60):
        Schedule.objects.update(announced_at=UtcNow())
        assert fire() == 1
    assert bytes(Job.objects.get().dedupe_key) == b"1-2"


def test_a_schedule_of_a_process_is_the_one_that_it_declares():
    begin(every=60)
    assert [*declared()] == ["tick"]


@pytest.fixture
def renamed():
    """A task that had the path of tasks.add before, as its aliases say."""
    return task(aliases=[tasks.add.module_path])(moved)


def moved(a, b):
    return a + b


def deploy_task(of, **given):
    """Workers whose code has this task and its schedule, under the name of the task."""
    for name in list(declared()):
        withdraw(name)
    schedule(args=(1, 2), **given)(of)
    return versions.announce(USING)


def names():
    return [*Schedule.objects.order_by("name").values_list("name", flat=True)]


@finding("S-B6")
def test_a_schedule_whose_task_was_renamed_goes_on_under_the_new_name_and_fires_once(renamed, caplog):
    old = deploy_task(tasks.add, every=60)
    disabled = row(tasks.add.module_path)
    with travel(to=disabled.next_at + timedelta(seconds=1)) as clock:
        fire()
        with caplog.at_level("INFO", logger="jobqueue.worker"):
            new = deploy_task(renamed, every=60)
        assert names() == [renamed.module_path]
        for _ in range(3):
            clock.forward(60)
            for ids in (old, new):
                versions.keep_announced(ids, USING)
            versions.settle(USING)
            fire_due(USING)
    assert len(jobs()) == len({*jobs()}) == 4
    assert names() == [renamed.module_path]
    assert row(renamed.module_path).task == renamed.module_path
    assert "its task was renamed" in caplog.text


@finding("S-B6")
def test_a_schedule_whose_renamed_task_was_taken_back_has_its_old_name_again(renamed):
    deploy_task(tasks.add, every=60)
    with travel(1) as clock:
        new = deploy_task(renamed, every=60)
        go_on(clock, new)
        deploy_task(tasks.add, every=60)
        assert names() == [tasks.add.module_path]
        # The workers with the new name live on for a while.
        for _ in range(3):
            clock.forward(10)
            versions.keep_announced(new, USING)
            versions.settle(USING)
        assert names() == [tasks.add.module_path]


@finding("S-B6")
def test_a_disabled_schedule_stays_disabled_when_its_task_is_renamed(renamed):
    deploy_task(tasks.add, every=60)
    disable(tasks.add.module_path, reason="too loud")
    with travel(1):
        deploy_task(renamed, every=60)
    assert [(one.name, one.enabled) for one in known()] == [(renamed.module_path, False)]


def test_a_retired_schedule_of_the_old_name_leaves_the_new_one_alone(renamed):
    deploy_task(tasks.add, every=60)
    with travel(versions.RETIRE_SECONDS + 10):
        versions.retire(USING)
        deploy_task(renamed, every=60)
        assert row(renamed.module_path).retired_at is None
        assert row(renamed.module_path).next_at is not None
        assert names() == [renamed.module_path]


@finding("S-B8")
def test_ticks_that_waited_when_a_schedule_was_retired_do_not_fire_when_it_is_announced_again():
    due = begin(every=60, overlap="queue").next_at
    with travel(to=due) as clock:
        fire()
        clock.forward(60)
        fire()
        assert outcomes() == [("fired", 1), ("waiting", 1)]
        clock.forward(versions.RETIRE_SECONDS + 10)
        versions.retire(USING)
        deploy(every=60, overlap="queue")
        Job.objects.all().delete()
        fire_due(USING)
    assert [outcome for outcome, _ in outcomes()] == ["fired", "skipped"]


@finding("S-A1")
def test_a_child_whose_announcement_raises_goes_on_to_its_jobs(monkeypatch, caplog):
    def broken(using):
        raise RuntimeError("a row of another shape")

    monkeypatch.setattr(versions, "announce", broken)
    process._announce(SimpleNamespace(database=USING), "w-1")
    assert "w-1 cannot announce its schedules" in caplog.text
    assert "a row of another shape" in caplog.text
