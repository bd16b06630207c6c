"""Which definition is in force while workers of several versions of the code run."""

from datetime import timedelta

import pytest

from jobqueue.db.clock import UtcNow
from jobqueue.models import Job, Schedule, ScheduleVersion
from jobqueue.schedules import disable, enable, known, versions
from jobqueue.schedules.declaring import declare, declared, withdraw
from jobqueue.schedules.firing import fire_due
from jobqueue.testing import travel
from tests.app import tasks
from tests.schedules.helpers import USING, begin, fire, minutes, outcomes, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


def deploy(*, start=True, **given):
    """Other code begins to run: its worker announces the schedule anew, or has none."""
    withdraw("tick")
    if given:
        declare("tick", tasks.add, given.pop("args", (1, 2)), None, given, "code")
    if start:
        return versions.announce(USING)
    return []


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
        clock.forward(versions.LAPSE_SECONDS + 1)
        versions.keep_announced(old, USING)
        versions.settle(USING)
        assert known()[0].every_seconds == 60


def test_a_version_that_comes_back_after_a_pause_is_in_force_at_once():
    deploy(every=60)
    with travel(1) as clock:
        new = deploy(every=3600)
        clock.forward(versions.LAPSE_SECONDS + 1)
        versions.keep_announced(new, USING)
        deploy(every=60)
        assert known()[0].every_seconds == 60


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
