"""The verbs for the jobs of one chunk, in the open transaction of that chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime

from django.db.models.functions import Coalesce

from jobqueue.conf import load
from jobqueue.models import AuditEvent, Job
from jobqueue.retention.by_hand import delete_job
from jobqueue.retention.deleting import REFUSALS, delete_jobs
from jobqueue.retention.history import keep_by
from jobqueue.transitions.operator import cancel_each, discard_each, release_held, retry_each

_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


def change(verb: str, ids: Sequence[int], *, using: str) -> int:
    """Apply `verb` to these jobs; how many it changed. The others do not allow it any more."""
    return _VERBS[verb](ids, using) if ids else 0


def _release(ids: Sequence[int], using: str) -> int:
    return sum(release_held(job_id, using=using) for job_id in ids)


def _delete(ids: Sequence[int], using: str) -> int:
    groups: dict[tuple[str, int], dict[int, datetime]] = defaultdict(dict)
    ended = Job.objects.using(using).filter(pk__in=list(ids), status__in=_ENDED)
    columns = ("pk", "queue", "status", Coalesce("finished_at", "updated_at"))
    for job_id, queue, status, ended_at in ended.values_list(*columns):
        groups[queue, status][job_id] = ended_at
    keeps, gone = keep_by(load()), 0
    for (queue, status), jobs in sorted(groups.items()):
        try:
            keep = keeps(queue, Job.Status(status).name.lower())
            gone += len(delete_jobs(jobs, status, using=using, keep=keep))
        except REFUSALS:
            # A row of the project protects one of them: the others go.
            gone += sum(delete_job(job_id, using=using) for job_id in jobs)
    return gone


_VERBS: dict[str, Callable[[Sequence[int], str], int]] = {
    AuditEvent.Verb.RETRY: lambda ids, using: retry_each(ids, using=using),
    AuditEvent.Verb.CANCEL: lambda ids, using: cancel_each(ids, using=using),
    AuditEvent.Verb.DISCARD: lambda ids, using: discard_each(ids, using=using),
    AuditEvent.Verb.RELEASE: _release,
    AuditEvent.Verb.PRUNE: _delete,
}
