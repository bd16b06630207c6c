"""What workers repair and delete: the sweep, the cleaner, and members that are not pruned."""

from __future__ import annotations

import pytest

from jobqueue import group, groups, transitions
from jobqueue.conf import load
from jobqueue.context.running_group import RunningGroup
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping import ends, members
from jobqueue.maintenance import cleaner, sweeps
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.retention.deletion import those_that_stay
from jobqueue.signals import group_ended
from jobqueue.testing import drain
from tests.app import tasks
from tests.marks import finding

pytestmark = pytest.mark.django_db


def made(count=2):
    with group("import", on_done=tasks.group_done) as g:
        g.add_many(tasks.add, [(number, 1) for number in range(count)])
    return g.id


def swept():
    done = sweeps.GroupSweep().sweep_all(load(), using="default")
    return done["groups_members_ended"], done["groups_ended"]


def callbacks():
    return Job.objects.filter(task="tests.app.tasks.group_done").count()


def test_the_sweep_leaves_a_group_alone_whose_members_run():
    made()
    transitions.claim("default", 1, worker="w")
    assert swept() == (0, 0)
    assert callbacks() == 0


def test_the_sweep_ends_members_whose_jobs_plain_sql_has_ended():
    number = made()
    Job.objects.update(status=Job.Status.DONE, finished_at=UtcNowPlus(0))
    assert swept() == (2, 1)
    assert (callbacks(), groups.get(number).done) == (1, 2)
    assert swept() == (0, 0)


def test_a_member_whose_job_was_deleted_counts_as_canceled():
    number = made()
    Job.objects.all().delete()
    assert swept() == (2, 1)
    assert groups.get(number).canceled == 2


def test_the_sweep_ends_a_group_whose_last_member_has_ended():
    number = made()
    GroupMember.objects.update(state=GroupMember.State.DONE)
    assert swept() == (0, 1)
    assert (callbacks(), groups.get(number).state) == (1, "ended")


def test_the_sweep_leaves_an_open_group_open():
    with pytest.raises(RuntimeError), group("open", chunk_size=1):
        raise RuntimeError
    assert swept() == (0, 0)


def test_the_sweep_goes_on_with_a_cancel_that_broke_off():
    number = made()
    JobGroup.objects.update(canceled_at=UtcNowPlus(0))
    swept()
    assert groups.get(number).canceled == 2
    assert callbacks() == 1


def test_members_beyond_one_look_are_found_in_the_next(monkeypatch):
    monkeypatch.setattr(sweeps, "_MEMBERS", 2)
    made(5)
    Job.objects.order_by("pk").first().delete()
    assert swept() == (1, 0)


def test_the_sweep_goes_on_with_members_of_a_group_that_was_met_in_an_earlier_pass_of_the_round(monkeypatch):
    """The end of a round must not forget how far it has come in the groups of its other passes."""
    monkeypatch.setattr(sweeps, "_GROUPS", 2)
    monkeypatch.setattr(sweeps, "_MEMBERS", 1)
    first, *_ = [made(3) for _ in range(3)]
    sweep = sweeps.GroupSweep()
    # The last member to be looked at: newer ones come first.
    lowest = GroupMember.objects.filter(group_id=first).order_by("job_id").values_list("job_id", flat=True)[0]
    Job.objects.filter(pk=lowest).update(status=Job.Status.DONE, finished_at=UtcNowPlus(0))
    ended = [sweep.run_once(load(), using="default")["groups_members_ended"] for _ in range(10)]
    assert sum(ended) == 1


@finding("S-A4")
def test_members_are_not_pruned_before_the_callbacks_of_their_group_have_ended():
    number = made()
    transitions.ack(transitions.claim("default", 1, worker="w")[0])
    (ended,) = Job.objects.filter(status=Job.Status.DONE).values_list("pk", flat=True)
    assert those_that_stay([ended], Job.Status.DONE, "default") == {ended}
    transitions.ack(transitions.claim("default", 1, worker="w")[0])
    # The callback is still to read them.
    assert groups.get(number).state == "ended"
    assert those_that_stay([ended], Job.Status.DONE, "default") == {ended}
    (callback,) = transitions.claim("default", 1, worker="w")
    assert those_that_stay([ended], Job.Status.DONE, "default") == {ended}
    transitions.ack(callback)
    assert those_that_stay([ended], Job.Status.DONE, "default") == set()


@finding("S-A4")
def test_a_callback_that_runs_after_members_were_deleted_is_told_so(monkeypatch):
    seen = []
    monkeypatch.setattr(tasks, "SEEN", seen)
    with group("sum", on_success=tasks.look_at_group) as g:
        g.add_many(tasks.add, [(1, 1), (2, 2)])
    transitions.ack_many(transitions.claim("default", 2, worker="w"))
    Job.objects.filter(task="tests.app.tasks.add").order_by("pk").first().delete()
    (error,) = drain(limit=1).errors
    assert f"results() of the group {g.id} cannot give all results: job " in str(error)
    GroupMember.objects.all().delete()
    with pytest.raises(InvalidValue, match="so old that its members are deleted"):
        list(RunningGroup(g.id, "default").results())
    assert seen == []


@finding("S-A4")
def test_an_old_group_stays_until_its_callbacks_have_ended(monkeypatch):
    monkeypatch.setattr(cleaner, "_GROUPS", 1)
    waits, other = made(1), made(1)
    transitions.ack_many(transitions.claim("default", 2, worker="w"))
    Job.objects.filter(options__callback_of=waits).update(run_at=UtcNowPlus(86400))
    transitions.ack_many(transitions.claim("default", 2, worker="w"))
    JobGroup.objects.update(ended_at=UtcNowPlus(-31 * 86400))
    assert cleaner.GROUPS.run_once(load(), using="default").total() == 1
    assert [*JobGroup.objects.values_list("pk", flat=True)] == [waits] != [other]
    assert GroupMember.objects.count() == 1


def test_ended_groups_are_deleted_with_their_members_when_they_are_old():
    number, live = made(3), made(1)
    transitions.ack_many(transitions.claim("default", 3, worker="w"))
    _, callback = transitions.claim("default", 2, worker="w")
    transitions.ack(callback)
    assert cleaner.GROUPS.run_once(load(), using="default").total() == 0
    JobGroup.objects.filter(pk=number).update(ended_at=UtcNowPlus(-31 * 86400))
    assert cleaner.GROUPS.run_once(load(), using="default", limit=2).total() == 1
    assert [*JobGroup.objects.values_list("pk", flat=True)] == [live]
    assert GroupMember.objects.count() == 1


BROKEN = {
    "a newer field": {"job": {"queue": "default", "payload": {"json": "{}"}, "mood": "good"}, "expires": None},
    "no job": {"template": {}},
    "no object": "later",
}


def made_unreadable(callback):
    """A group of two members whose callback this version cannot read, and a job of nobody; the members end with it."""
    number = made(2)
    JobGroup.objects.update(callbacks={"on_done": BROKEN[callback]})
    tasks.add.enqueue(1, 2)
    assert transitions.ack_many(transitions.claim("default", 3, worker="w")) == []
    return number


@finding("S-B10")
@pytest.mark.parametrize("callback", BROKEN)
def test_a_callback_that_cannot_be_read_does_not_keep_members_and_other_jobs_from_ending(callback):
    number = made_unreadable(callback)
    assert [*Job.objects.values_list("status", flat=True)] == [Job.Status.DONE] * 3
    assert (groups.get(number).state, groups.get(number).done) == ("sealed", 2)


@pytest.mark.parametrize("callback", BROKEN)
def test_a_group_whose_callback_cannot_be_read_is_told_once_and_ends_where_it_can(callback, caplog):
    ends._tell_once.cache_clear()
    number = made_unreadable(callback)
    assert swept() == swept() == (0, 0)
    (record,) = caplog.records
    assert f"all members of the group {number} have ended, but it has not: this version cannot" in record.getMessage()
    assert members.still_read([number], "default") == {number}
    # As the workers of the version that has written it see it.
    made(0)
    JobGroup.objects.filter(pk=number).update(callbacks=JobGroup.objects.exclude(pk=number).get().callbacks)
    assert swept() == (0, 1)
    assert (groups.get(number).state, callbacks()) == ("ended", 2)


def test_drain_runs_members_and_callbacks():
    number = made(3)
    assert drain().ok == 4
    assert groups.get(number).state == "ended"


def test_a_signal_says_that_a_group_has_ended(django_capture_on_commit_callbacks):
    heard = []

    def hear(**values):
        heard.append((values["group_id"], values["name"], values["total"], values["done"], values["using"]))

    group_ended.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            number = made(0)
    finally:
        group_ended.disconnect(hear)
    assert heard == [(number, "import", 0, 0, "default")]
