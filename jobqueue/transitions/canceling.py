"""cancel() for the members of a group, in transactions of many."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.gates.waiting import ended_unstarted
from jobqueue.grouping.ends import outstanding
from jobqueue.models import Job
from jobqueue.models.rows import in_state
from jobqueue.transitions.leases import canceled
from jobqueue.transitions.verb import JobRef, Portion, Written, end_in_groups, run_verb

BATCH = 500
_COLUMNS = ("pk", "queue", "task", "ordering_key", "concurrency_key", "options", "status", "cancel_requested_at")


def cancel_members(group_id: int, *, using: str) -> int:
    """Cancel the members of a group that wait, and ask those that run to stop; how many were canceled."""
    before, done = None, 0
    while True:
        rows = outstanding(group_id, using)
        ahead = rows if before is None else rows.filter(job_id__lt=before)
        ids = list(ahead.values_list("job_id", flat=True)[:BATCH])
        if ids:
            jobs: list[Job] = []
            written = run_verb("cancel", [Portion(using, partial(_write, ids, using, jobs))], {}).written
            done += len(written.get(Job.Status.CANCELED, ()))
            for job in jobs:
                ended_unstarted([(job.task, job.concurrency_key)], job.queue, using=using)
        if len(ids) < BATCH:
            return done
        before = ids[-1]


def _write(ids: Sequence[int], using: str, ended: list[Job], tries: int) -> Written:
    """`ended` gets the jobs that this try has canceled."""
    with vendor(using).transaction(connections[using]):
        rows = list(Job.objects.using(using).filter(pk__in=ids).order_by("pk").only(*_COLUMNS).select_for_update())
        ended[:] = [job for job in rows if job.status == Job.Status.READY]
        running = [job for job in rows if job.status == Job.Status.PROCESSING and job.cancel_requested_at is None]
        in_state([job.pk for job in ended], Job.Status.READY, using=using).update(**canceled())
        asked = {"cancel_requested_at": UtcNow(), "updated_at": UtcNow()}
        in_state([job.pk for job in running], Job.Status.PROCESSING, using=using).update(**asked)
        end_in_groups(((job.pk, job.options, Job.Status.CANCELED) for job in ended), using)
    return {
        Job.Status.CANCELED: [JobRef(job.pk, job.queue, job.task, job.ordering_key, using) for job in ended],
        Job.Status.PROCESSING: [JobRef(job.pk, job.queue, job.task, job.ordering_key, using) for job in running],
    }
