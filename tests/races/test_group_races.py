"""Several transactions end the last members of a group at once: one of them ends the group, and none is stuck."""

from functools import partial

import pytest
from django.db import connection, transaction

from jobqueue import group, groups
from jobqueue.conf import load
from jobqueue.context.running_group import RunningGroup
from jobqueue.maintenance import sweeps
from jobqueue.models import Job
from jobqueue.signals import group_ended
from jobqueue.transitions import ack, ack_many, cancel, claim, discard, fail, release, retry
from tests.app import tasks
from tests.marks import committed, finding
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = committed
needs_row_locks = pytest.mark.skipif(
    VENDOR == "sqlite", reason="SQLite has one writer at a time: a second transaction waits for the first"
)
ROUNDS = 5


def made(count):
    """A group of jobs that run: its id, and their leases."""
    with group("race", on_done=tasks.group_done) as g:
        g.add_many(tasks.add, [(number, 1) for number in range(count)])
    return g.id, claim("default", count, worker="w")


def callbacks():
    return Job.objects.filter(task="tests.app.tasks.group_done").count()


def check_ended(number):
    """It has ended once, and without a sweep."""
    assert groups.get(number).state == "ended"
    assert callbacks() == 1
    done = sweeps.GroupSweep().sweep_all(load(), using="default")
    assert (done["groups_members_ended"], done["groups_ended"]) == (0, 0)


def test_of_acks_at_the_same_time_one_ends_the_group():
    for _ in range(ROUNDS):
        Job.objects.all().delete()
        number, leases = made(6)
        assert all_at_once([partial(ack, lease) for lease in leases]) == [None] * 6
        check_ended(number)


def test_of_batches_at_the_same_time_one_ends_the_group():
    for _ in range(ROUNDS):
        Job.objects.all().delete()
        number, leases = made(12)
        assert all_at_once([partial(ack_many, leases[start::4]) for start in range(4)]) == [[]] * 4
        check_ended(number)


def test_a_seal_at_the_same_time_as_the_last_ack_ends_the_group_once():
    for _ in range(ROUNDS):
        Job.objects.all().delete()
        with group("race", on_done=tasks.group_done, chunk_size=1) as g:
            g.add(tasks.add, 1, 2)
            g.add(tasks.add, 3, 4)
            leases = claim("default", 2, worker="w")
            # The block's own seal is the third.
            all_at_once([partial(ack, leases[0]), partial(ack, leases[1]), partial(groups.seal, g.id)])
        check_ended(g.id)


@needs_row_locks
def test_members_do_not_wait_for_each_other_while_others_are_outstanding():
    number, leases = made(5)
    with holding(lambda: ack(leases[0])):
        Actor(ack, leases[1]).result()
        Actor(ack, leases[2]).result()
    ack_many(leases[3:])
    check_ended(number)


@needs_row_locks
@pytest.mark.parametrize("commit", [True, False])
def test_the_last_two_wait_for_each_other_and_one_ends_the_group(commit):
    number, (first, second) = made(2)
    with holding(lambda: ack(first), commit=commit):
        other = Actor(ack, second)
        other.is_blocked()
        assert callbacks() == 0
    other.result()
    if not commit:
        assert groups.get(number).state == "sealed"
        ack(first)
    check_ended(number)


@needs_row_locks
def test_an_old_snapshot_of_the_caller_does_not_hide_the_end_of_others():
    number, (first, second) = made(2)

    def in_callers_transaction():
        with transaction.atomic():
            Job.objects.count()
            Actor(ack, first).result()
            ack(second)

    Actor(in_callers_transaction).result()
    check_ended(number)


def test_a_cancel_at_the_same_time_as_the_last_acks_ends_the_group_once():
    for _ in range(ROUNDS):
        Job.objects.all().delete()
        with group("race", on_done=tasks.group_done) as g:
            g.add_many(tasks.add, [(number, 1) for number in range(6)])
        leases = claim("default", 3, worker="w")
        waiting = [*Job.objects.filter(status=Job.Status.READY).values_list("pk", flat=True)]
        all_at_once(
            [partial(ack_many, leases), partial(groups.cancel, g.id), *(partial(cancel, job_id) for job_id in waiting)]
        )
        check_ended(g.id)


def test_a_retry_at_the_same_time_as_the_last_ack_leaves_nothing_stuck():
    for _ in range(ROUNDS):
        Job.objects.all().delete()
        number, (first, second) = made(2)
        fail(first._replace(max_attempts=1), error="wrong")
        all_at_once([partial(retry, first.job_id), partial(ack, second)])
        ack_many(claim("default", 5, worker="w"))
        check_ended(number)


ENDS = {
    "ack": ack,
    "fail": lambda lease: fail(lease._replace(max_attempts=1), error="wrong"),
    "discard": lambda lease: discard(lease.job_id),
    "cancel the group": lambda lease: groups.cancel(int(lease.options["group"])),
}


@needs_row_locks
@pytest.mark.skipif(VENDOR == "postgres", reason="it refuses to write what has changed since the snapshot")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("level", ["READ COMMITTED", pytest.param("REPEATABLE READ", marks=finding("S-B5"))])
def test_an_old_snapshot_of_the_caller_counts_the_members_that_others_have_ended(end, level):
    number, leases = made(4)
    heard = []

    def hear(**values):
        heard.append([values[name] for name in ("total", "done", "failed", "canceled")])

    def in_callers_transaction():
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        with transaction.atomic():
            assert groups.get(number).done == 0
            Actor(others, number, leases).result()
            ENDS[end](leases[0])

    def others(number, leases):
        RunningGroup(number, "default").add(tasks.add, 5, 1)
        ack_many([*leases[1:], *claim("default", 1, worker="w")])
        if end in ("discard", "cancel the group"):
            release(leases[0])

    group_ended.connect(hear)
    try:
        Actor(in_callers_transaction).result()
    finally:
        group_ended.disconnect(hear)
    found = groups.get(number)
    counts = [5, 5, 0, 0] if end == "ack" else [5, 4, 1, 0] if end == "fail" else [5, 4, 0, 1]
    assert [found.total, found.done, found.failed, found.canceled] == counts
    assert heard == [counts]
