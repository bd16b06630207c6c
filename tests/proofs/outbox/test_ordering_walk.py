"""A process dies at every moment of what moves a lane on: its key is never overtaken, and a sweep lets it go on."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import Error, connection, transaction

from jobqueue import enqueue, enqueue_many, transitions
from jobqueue.maintenance import sweeps
from jobqueue.models import Job, LaneEntry
from jobqueue.transitions import ack, claim, fail, resume, retry
from tests.factories import claim_one, expire, lease_with
from tests.faults.conftest import wait_until_gone
from tests.faults.moments import cut_at
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = committed


class Died(BaseException):
    """The process is gone: nothing catches it."""


def die(wrapper, after):
    # First the session, so that nothing on the way out of the blocks can still reach the server. SQLite has none.
    if wrapper.connection is not None and VENDOR != "sqlite":
        session = wrapper.connection.info.backend_pid if VENDOR == "postgres" else wrapper.connection.thread_id()
        wrapper.connection.close()
        # The server rolls back when it notices: until then the dead one's locks would hide jobs from claims.
        wait_until_gone(session)
        # Or Django would meet an error of its own there, which whoever redoes transactions would take for the cause.
        wrapper.closed_in_transaction = True
    raise Died


def three():
    return enqueue_many("q", range(3), ordering_key="k")


def running():
    ids = three()
    return ids, claim_one()


def dead():
    ids, lease = running()
    fail(lease_with(lease, max_attempts=1), error="boom", retry=False)
    return ids, lease


def left_behind():
    ids, lease = dead()
    resume("q", "k")
    return ids, lease


def in_a_transaction():
    with transaction.atomic():
        enqueue("other", 0)
        enqueue("q", 3, ordering_key="k")
        enqueue("q", 4, ordering_key="k")


# name -> (what is there before, what dies, the orders in which the jobs may end: by place among the first three ids)
WALKS = {
    "enqueue": (three, lambda found: enqueue("q", 3, ordering_key="k")),
    "enqueue_many": (three, lambda found: enqueue_many("q", [3, 4], ordering_key="k")),
    "enqueue in a transaction": (three, lambda found: in_a_transaction()),
    "the first enqueue": (lambda: [], lambda found: enqueue("q", 0, ordering_key="k")),
    "ack": (running, lambda found: ack(found[1])),
    "ack_many": (running, lambda found: transitions.ack_many([found[1]])),
    "cancel": (running, lambda found: transitions.cancel_held(found[1])),
    "discard of a failed head": (dead, lambda found: transitions.discard(found[0][0])),
    "retry of a failed head": (dead, lambda found: retry(found[0][0])),
    "retry of one that was left behind": (left_behind, lambda found: retry(found[0][0])),
    "resume": (dead, lambda found: resume("q", "k")),
    "advance": (running, lambda found: Job.objects.filter(pk=found[0][0]).delete() and sweep()),
}


def sweep():
    return sweeps.OrderingSweep().sweep_all(None, using="default")["jobs_opened"]


def end_all():
    """Run what is there to its end, one after another; the ids in the order in which they ended."""
    ended = []
    expire(*Job.objects.filter(status=Job.Status.PROCESSING).values_list("pk", flat=True))
    transitions.reap()
    sweep()
    while leases := claim("q", 10, worker="w"):
        assert len(leases) == 1, "two jobs of one key at once"
        ack(leases[0])
        ended.append(leases[0].job_id)
    assert sweep() == 0, "ack had left the key standing still"
    return ended


@pytest.mark.parametrize("name", WALKS)
def test_a_process_that_dies_at_any_moment_leaves_a_lane_that_goes_on_in_order(name, full, figure):
    """A process dies before and after every statement of what moves a key on: it is not overtaken, and goes on."""
    prepare, act = WALKS[name]
    passed, dead = [], 0
    # In short form every fourth moment; each walk begins at another.
    number = 0 if full else len(name) % 4
    while number <= len(passed) or not passed:
        number += 1 if full else 4
        for model in (Job, LaneEntry):
            model.objects.all().delete()
        found = prepare()
        try:
            with cut_at(number, die) as passed:
                act(found)
        except (Died, Error):
            dead += 1
            # What was not committed is gone with the session.
            connection.closed_in_transaction = False
            with suppress(Error):
                connection.close()
        where = f"dead {passed[number - 1]} ({number})" if number <= len(passed) else "alive"
        ended = end_all()
        left = Job.objects.filter(status__in=(Job.Status.READY, Job.Status.PROCESSING), queue="q")
        if Job.objects.filter(status=Job.Status.FAILED, pk__in=LaneEntry.objects.values("job_id")).exists():
            assert ended == [], f"a failed head was overtaken, {where}"
            assert resume("q", "k"), where
            ended = end_all()
        assert not left.exists(), where
        assert not LaneEntry.objects.exists(), where
        # A job that was left behind and retried comes last, all others in the order of their ids.
        ids = sorted(ended)
        moved = ids[1:] + ids[:1] if name.startswith("retry of one") and len(ids) == 3 else ids
        assert ended == moved, where
    assert dead >= (4 if full else 1)
    figure("what dies", name)
    figure("moments", dead)
