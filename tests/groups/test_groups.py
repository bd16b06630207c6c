"""group(): members, callbacks, growing, chunks, seal, cancel."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import Error, connection, connections, transaction

from jobqueue import current_job, group, groups, transitions
from jobqueue.context.running_group import RunningGroup
from jobqueue.exceptions import (
    InvalidType,
    InvalidValue,
    JobQueueError,
    PayloadError,
    WrongDatabase,
)
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.testing import drain
from tests.app import tasks
from tests.groups.helpers import callbacks, claimed
from tests.marks import committed, finding

pytestmark = pytest.mark.django_db


def made(count=2, **given):
    """A group of jobs, with all three callbacks."""
    given = {"on_success": tasks.group_succeeded, "on_failure": tasks.group_failed, "on_done": tasks.group_done} | given
    with group("import", **given) as g:
        g.add_many(tasks.add, [(number, 1) for number in range(count)])
    return g.id


def test_a_group_ends_with_its_last_member_and_enqueues_its_callbacks_once():
    number = made(3)
    leases = claimed(3)
    for lease in leases[:2]:
        transitions.ack(lease, result=1)
        assert callbacks() == []
    assert (groups.get(number).state, groups.get(number).outstanding) == ("sealed", 1)
    transitions.ack(leases[2], result=1)
    assert callbacks() == ["group_succeeded", "group_done"]
    found = groups.get(number)
    assert (found.state, found.total, found.done, found.failed, found.canceled) == ("ended", 3, 3, 0, 0)
    assert found.ended_at is not None


def test_members_may_be_acked_in_one_batch():
    made(5)
    assert transitions.ack_many(claimed(5)) == []
    assert callbacks() == ["group_succeeded", "group_done"]


def test_a_batch_may_have_members_of_several_groups_and_jobs_of_none():
    made(2)
    tasks.add.enqueue(1, 2)
    made(1)
    transitions.ack_many(claimed(4))
    assert callbacks() == ["group_succeeded", "group_done"] * 2


@pytest.mark.parametrize("verb", ["fail", "discard", "cancel", "reap"])
def test_a_group_fails_if_a_member_does_not_end_well(verb):
    number = made(2)
    _, second = Job.objects.order_by("pk").values_list("pk", flat=True)
    if verb in ("discard", "cancel"):
        assert getattr(transitions, verb)(second)
        transitions.ack(claimed()[0])
    else:
        Job.objects.update(max_attempts=1)
        leases = claimed(2)
        transitions.ack(leases[0])
        if verb == "fail":
            transitions.fail(leases[1], error="wrong")
        else:
            Job.objects.filter(pk=second).update(lock_until="2020-01-01T00:00:00Z")
            assert transitions.reap().dead == 1
    assert callbacks() == ["group_failed", "group_done"]
    assert groups.get(number).done == 1


def test_a_failure_that_is_retried_does_not_end_the_member():
    made(1)
    transitions.fail(claimed()[0], error="wrong", delay_seconds=0)
    assert callbacks() == []
    transitions.ack(claimed()[0])
    assert callbacks() == ["group_succeeded", "group_done"]


def test_a_member_that_expires_ends():
    made(1)
    Job.objects.update(expires_at="2020-01-01T00:00:00Z")
    # The claim goes on behind it, and finds the first callback.
    assert [lease.task.rpartition(".")[2] for lease in claimed()] == ["group_failed"]
    assert callbacks() == ["group_failed", "group_done"]


def test_the_callbacks_of_an_empty_group_are_enqueued_at_once():
    number = made(0)
    assert callbacks() == ["group_succeeded", "group_done"]
    assert groups.get(number).total == 0


def test_all_members_are_added_or_none():
    def make():
        with group("import", on_success=tasks.group_done) as g:
            g.add(tasks.add, 1, 2)
            g.add(tasks.add, object(), 1)

    with pytest.raises(PayloadError):
        make()
    assert not Job.objects.exists()
    assert not JobGroup.objects.exists()
    assert not GroupMember.objects.exists()


def test_a_group_is_part_of_the_callers_transaction():
    with transaction.atomic():
        made(1)
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    assert not JobGroup.objects.exists()


def test_a_rollback_of_the_last_ack_takes_the_callbacks_with_it():
    made(1)
    (lease,) = claimed()
    with transaction.atomic():
        transitions.ack(lease)
        assert callbacks()
        transaction.set_rollback(True)
    assert callbacks() == []
    transitions.ack(lease)
    assert callbacks() == ["group_succeeded", "group_done"]


@pytest.mark.parametrize("callback", ["on_success", "on_failure", "on_done"])
def test_a_callback_that_needs_arguments_is_refused(callback):
    with pytest.raises(InvalidValue, match=f"{callback} cannot be a callback"), group("x", **{callback: tasks.add}):
        pass
    assert not JobGroup.objects.exists()


def test_what_is_no_task_is_refused():
    with pytest.raises(InvalidType, match="not a task"), group("x") as g:
        g.add(len, 1)
    with pytest.raises(JobQueueError), group("x", on_done=len):
        pass
    assert not JobGroup.objects.exists()


def test_add_after_the_end_of_the_block_is_refused():
    with group("x") as g:
        g.add(tasks.add, 1, 2)
    with pytest.raises(InvalidValue, match="is over"):
        g.add(tasks.add, 1, 2)
    with pytest.raises(InvalidValue, match="has begun before"), g:
        pass
    assert Job.objects.count() == 1


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 256])
def test_wrong_names_are_refused(name):
    with pytest.raises(InvalidValue, match="the name of a group"):
        group(name)


def test_a_job_of_another_database_is_refused(monkeypatch):
    backend = tasks.add.get_backend()
    with group("x") as g:
        monkeypatch.setattr(type(backend), "database", "other")
        with pytest.raises(WrongDatabase, match="no transaction spans both"):
            g.add(tasks.add, 1, 2)
    assert not Job.objects.exists()


def test_a_held_dedupe_key_among_the_members_is_refused():
    keyed = tasks.add.using(dedupe_key="k")
    keyed.enqueue(1, 2)
    with pytest.raises(InvalidValue, match="dedupe key"), group("x") as g:
        g.add(keyed, 1, 2)
    with pytest.raises(InvalidValue, match="dedupe key"), group("x") as g:
        g.add_many(tasks.add.using(dedupe_key="twice"), [(1, 2), (3, 4)])
    assert Job.objects.count() == 1
    with group("x") as g:
        g.add(tasks.add.using(dedupe_key="free"), 1, 2)
    assert Job.objects.count() == 2


def test_calls_are_tuples_or_dicts():
    with group("x") as g:
        g.add_many(tasks.add, [(1, 2), {"a": 3, "b": 4}])
        with pytest.raises(InvalidType, match=r"calls\[0\]"):
            g.add_many(tasks.add, [5])
    assert Job.objects.count() == 2


def test_cancel_cancels_those_that_wait_and_asks_those_that_run():
    number = made(3)
    (lease,) = claimed()
    assert [groups.cancel(number), groups.cancel(number)] == [True, False]
    assert callbacks() == []
    assert Job.objects.get(pk=lease.job_id).cancel_requested_at is not None
    transitions.ack(lease)
    assert callbacks() == ["group_failed", "group_done"]
    assert (groups.get(number).done, groups.get(number).canceled) == (1, 2)


def test_a_member_that_runs_on_after_the_cancel_adds_no_others():
    number = made(2)
    claimed()
    groups.cancel(number)
    with pytest.raises(InvalidValue, match="was canceled, and takes no more jobs"):
        RunningGroup(number, "default").add(tasks.look_at_group)
    assert groups.get(number).total == 2


def test_cancel_ends_a_group_of_which_no_member_runs():
    number = made(3)
    assert groups.cancel(number)
    assert groups.get(number).state == "ended"
    assert callbacks() == ["group_failed", "group_done"]


def test_an_unknown_group_is_refused():
    for call in (groups.get, groups.seal, groups.cancel):
        with pytest.raises(InvalidValue, match="no group 77"):
            call(77)


def test_a_member_that_is_retried_does_not_open_an_ended_group():
    number = made(1)
    Job.objects.update(max_attempts=1)
    transitions.fail(claimed()[0], error="wrong")
    job_id = GroupMember.objects.get().job_id
    assert transitions.retry(job_id)
    (lease,) = [lease for lease in claimed(5) if lease.job_id == job_id]
    transitions.ack(lease)
    assert callbacks() == ["group_failed", "group_done"]
    assert groups.get(number).failed == 1


def test_a_member_that_is_retried_is_outstanding_again_while_the_group_has_not_ended():
    number = made(2)
    Job.objects.update(max_attempts=1)
    first, second = claimed(2)
    transitions.fail(first, error="wrong")
    assert transitions.retry(first.job_id)
    transitions.ack(second)
    assert callbacks() == []
    transitions.ack(claimed()[0])
    assert callbacks() == ["group_succeeded", "group_done"]
    assert groups.get(number).done == 2


def test_jobs_without_a_group_know_none(monkeypatch):
    assert current_job() is None
    seen = []
    monkeypatch.setattr(tasks, "SEEN", seen)
    tasks.look_at_group.enqueue()
    drain().raise_error()
    assert seen == [None]


def test_a_running_member_sees_its_group_and_adds_to_it(monkeypatch):
    seen = []
    monkeypatch.setattr(tasks, "SEEN", seen)
    with group("tree", on_success=tasks.look_at_group) as g:
        g.add(tasks.grow, 2)
    drain().raise_error()
    assert seen == [(g.id, "tree", 3, 3, 0, 0, [2, 1, 0])]


def test_a_callback_cannot_add_members(monkeypatch):
    monkeypatch.setattr(tasks, "SEEN", [])
    with group("late", on_success=tasks.grow_late):
        pass
    (error,) = drain(limit=1).errors
    assert "has ended, and takes no more jobs" in str(error)


def refused(execute, sql, params, many, context):
    """The server refuses the first INSERT."""
    return execute(
        "INSERT INTO job_group (nothing) VALUES (1)" if sql.startswith("INSERT") else sql, None, many, context
    )


@pytest.fixture
def left_open():
    """A transaction that is left open ends with the test."""
    yield
    if connection.in_atomic_block:
        connection.close()
        del connections["default"]


@finding("K-C1")
@committed
@pytest.mark.parametrize("around", [nullcontext, transaction.atomic])
def test_a_group_whose_row_cannot_be_inserted_leaves_no_transaction_open(around, left_open):
    with around():
        before = connection.in_atomic_block, len(connection.savepoint_ids)
        with connection.execute_wrapper(refused), pytest.raises(Error) as caught, group("import"):
            pytest.fail("the block has begun")
        # The error holds the frames of the block, as connection.rollback_exc does: nothing is left to the collector.
        assert caught.value.__traceback__ is not None
        assert (connection.in_atomic_block, len(connection.savepoint_ids)) == before
        assert not connection.needs_rollback
        made(1)
    assert JobGroup.objects.count() == 1


@committed
def test_a_group_that_could_not_begin_may_be_begun_again(left_open):
    block = group("import")
    with connection.execute_wrapper(refused), pytest.raises(Error), block:
        pytest.fail("the block has begun")
    with block as g:
        g.add(tasks.add, 1, 2)
    assert groups.get(g.id).total == 1
