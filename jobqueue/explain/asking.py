"""Ask workers for the stacks of their threads, for those who may write: the functions that explain only read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

from django.db import Error, connections

from jobqueue.db import vendor
from jobqueue.db.expressions import Slot, Unestimated
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.exceptions import DatabaseBusy
from jobqueue.explain.explanation import Explanation
from jobqueue.explain.reports import WORKERS_MAX
from jobqueue.explain.serving import serve
from jobqueue.explain.workers import read_workers
from jobqueue.maintenance import worker_stacks
from jobqueue.models import Job

#: how long answers are waited for, and between two looks for them
WAIT_SECONDS, LOOK_SECONDS = 3.0, 0.1


def ask_workers(found: Sequence[Explanation], *, job_id: int | None, queue: str | None, using: str) -> bool:
    """Ask the workers that `found` is about, and wait for their answers, at most WAIT_SECONDS; whether any has come.

    `found` explains a job, a queue or, without either, the backlog. Nobody is asked if it names no running job and no
    busy worker; if the database answers so slowly that it does not name all causes; in an open transaction, which
    workers do not see; or by an account that may not write.
    """
    codes = {one.code for one in found}
    if any(one.evidence.get("looked_at_all") is False for one in found):
        return False
    if connections[using].in_atomic_block or not codes & {"running", "workers_busy"}:
        return False
    names = _of_job(job_id, using) if job_id is not None else []
    names = (names or _of_queues(queue, using, idle="workers_busy" in codes))[:WORKERS_MAX]
    try:
        if names:
            worker_stacks.ask(names, using=using)
    except (Error, DatabaseBusy):
        connections[using].close()
        return False
    until, waiting = time.monotonic() + WAIT_SECONDS, names
    while waiting and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        waiting = worker_stacks.asked(names, using=using)
    return len(waiting) < len(names)


def _of_job(job_id: int, using: str) -> list[str]:
    """The worker that runs this job."""
    rows = Job.objects.using(using).filter(pk=job_id, status=Job.Status.PROCESSING, locked_by__isnull=False)
    return [str(name) for name in rows.values_list("locked_by", flat=True)]


def _of_queues(queue: str | None, using: str, *, idle: bool) -> list[str]:
    """The workers that serve a queue, or any, and hold jobs; if none does and `idle`, all of them."""
    workers = read_workers(using)
    names = sorted(worker.name for worker in workers) if queue is None else sorted(serve(queue, workers).threads)
    busy = {name for (name,) in _any_lease(using).rows_of_each([{"worker": name} for name in names])} if names else ()
    return sorted(busy) or (names if idle else [])


@cache
def _any_lease(using: str) -> Prepared:
    # By equality: for a list of names MySQL may read the whole index.
    rows = Job.objects.using(using).filter(
        locked_by=Slot("worker", NameField()), status=Unestimated(Job.Status.PROCESSING)
    )
    return prepare_rows(vendor(using).force_index(rows, "ix_worker").values_list("locked_by")[:1])
