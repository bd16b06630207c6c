"""A redrive whose process dies, or loses its session, at any moment: no job is lost, and none is retried twice."""

from __future__ import annotations

from jobqueue import enqueue
from jobqueue.conf import load
from jobqueue.dead_letters import redrive, redrives
from jobqueue.maintenance import sweeps
from jobqueue.models import Job, LaneEntry, Redrive
from jobqueue.runs.redrive_steps import step
from jobqueue.transitions import ack, claim, fail, resume
from tests.faults.cuts import before_first, carry_out_all, disconnected, each_cut, killed
from tests.marks import committed
from tests.settings import FULL

#: `make prove` walks each moment
STRIDE = 1 if FULL else 17

pytestmark = committed


def begin():
    """Two plain dead letters, and two of one ordering key; a redrive of all of them."""
    for model in (Job, LaneEntry, Redrive):
        model.objects.all().delete()
    ids = [enqueue("q", n, ordering_key=key, max_attempts=1) for n, key in enumerate((None, "k", None, "k"))]
    for _ in range(2):
        for lease in claim("q", 9, worker="w"):
            fail(lease, error=ValueError("x"))
        resume("q", "k")
    assert Job.objects.dead().count() == 4
    redrive(everything=True)
    return ids


def carry_out(most=2):
    """Take steps until no redrive is under way."""
    carry_out_all(lambda: step(using="default", most=most), Redrive.objects.filter(due_at__isnull=False))


def check(ids, where):
    rows = list(Job.objects.filter(pk__in=ids).order_by("pk").values_list("status", "epoch"))
    assert rows == [(Job.Status.READY, 1)] * 4, where
    (run,) = redrives()
    assert (run.redriven, run.skipped, run.state) == (4, 0, "done"), where
    order = []
    while leases := claim("q", 9, worker="w"):
        order += [lease.job_id for lease in leases]
        for lease in leases:
            ack(lease)
    assert sorted(order) == ids, where
    assert [job_id for job_id in order if job_id in (ids[1], ids[3])] == [ids[1], ids[3]], where


@each_cut
def test_wherever_it_is_cut_each_job_is_retried_exactly_once(cut, figure):
    """A redrive cut before and after each statement: no job is lost, none is retried twice, keys keep their order."""
    number, cuts = before_first(STRIDE), 0
    while True:
        number += STRIDE
        ids = begin()
        stopped = cut(number, carry_out)
        carry_out()
        if stopped:
            # What a worker does every second, for a key whose process died between commit and promotion.
            sweeps.OrderingSweep().sweep_all(load(), using="default")
        check(ids, f"cut at moment {number}")
        if not stopped:
            break
        cuts += 1
    assert number > 20
    figure("cut by", {killed: "SIGKILL", disconnected: "a lost session"}[cut])
    figure("moments", cuts)
    figure("jobs lost / retried twice", "0 / 0")
