"""Schedules that are made and changed by hand."""

import pytest

from jobqueue import schedules
from jobqueue.exceptions import InvalidValue, JobQueueError
from jobqueue.models import Schedule, ScheduleVersion
from jobqueue.schedules import versions
from jobqueue.schedules.declaring import check_terms
from jobqueue.schedules.editing import revert, save
from jobqueue.testing import travel
from tests.app import tasks
from tests.schedules.helpers import USING, begin, fire, jobs, minutes, outcomes, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


def make(name="tick", args=(1, 2), *, by="ann", enabled=True, reason="", **given):
    return save(
        name, tasks.add, args, {}, check_terms(name, **(given or {"every": 60})),
        by=by, using=USING, enabled=enabled, reason=reason,
    )  # fmt: skip


def test_a_new_schedule_is_of_the_admin_and_fires_without_a_worker_that_announces_it():
    assert make() is True
    found = row()
    assert (found.source, found.edited, found.edited_by, found.enabled) == ("admin", False, "ann", True)
    with travel(to=found.next_at):
        assert fire() == 1
    assert jobs() == [found.next_at.isoformat()]


def test_a_new_schedule_can_be_disabled_with_a_reason():
    make(enabled=False, reason=" not yet ")
    assert (row().enabled, row().reason, row().next_at, row().look_at) == (False, "not yet", None, None)
    with pytest.raises(InvalidValue, match="reason has 0 characters"):
        make("other", enabled=False)
    assert not Schedule.objects.filter(name="other").exists()


def test_a_schedule_of_the_code_that_is_changed_keeps_the_change_until_it_is_taken_back():
    begin(every=60)
    before = row().digest
    assert make(every=300) is False
    versions.announce(USING)
    [found] = schedules.known(using=USING)
    assert (found.every_seconds, found.source, found.edited, found.edited_by) == (300, "code", True, "ann")
    assert found.differs
    assert revert("tick", by="bob", using=USING) is True
    assert (row().digest, row().edited, row().edited_by) == (before, False, "")
    assert revert("tick", by="bob", using=USING) is False


def test_ticks_that_are_due_are_decided_by_the_terms_of_before():
    due = begin(every=60).next_at
    with travel(to=due):
        make(every=3600)
        assert outcomes() == [("fired", 1)]
        assert row().next_at > due + minutes(1) or row().next_at.minute == 0


def test_a_change_can_disable_a_schedule_and_enable_it_without_firing_what_was_due_meanwhile():
    due = begin(every=60).next_at
    make(enabled=False, reason="stop")
    assert (row().enabled, row().next_at) == (False, None)
    with travel(to=due + minutes(5)):
        make()
        assert (row().enabled, row().reason, row().next_at) == (True, "", due + minutes(6))
        assert fire() == 0


def test_only_what_was_announced_can_be_put_in_force_again():
    make()
    with pytest.raises(InvalidValue, match="no worker announces the schedule 'tick'"):
        revert("tick", by="ann", using=USING)
    with pytest.raises(InvalidValue, match="no schedule is called 'tok'"):
        revert("tok", by="ann", using=USING)


def test_a_schedule_made_by_hand_gives_way_to_that_of_the_code_when_it_is_reverted():
    make(every=300)
    begin(every=60)
    assert (row().source, row().definition["timing"]["every_seconds"]) == ("admin", 300)
    revert("tick", by="ann", using=USING)
    assert (row().source, row().definition["timing"]["every_seconds"]) == ("code", 60)


def test_a_retired_schedule_cannot_be_changed():
    begin()
    Schedule.objects.update(retired_at=row().created_at)
    with pytest.raises(InvalidValue, match="is retired"):
        make(every=300)
    assert (row().edited, ScheduleVersion.objects.count()) == (False, 1)


def test_wrong_arguments_are_refused():
    with pytest.raises(JobQueueError, match="schedule 'tick'"):
        make(args=(1, 2, 3, 4))
    assert not Schedule.objects.exists()


def test_of_a_long_name_of_the_author_150_characters_are_kept():
    make(by="x" * 151)
    assert row().edited_by == "x" * 150
