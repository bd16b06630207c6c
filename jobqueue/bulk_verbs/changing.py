"""The verbs for the jobs of one chunk, in the open transaction of that chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from django.db.models import Q
from django.db.models.functions import Coalesce

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.models import AuditEvent, Job
from jobqueue.retention.deletion import REFUSALS, delete_job, delete_jobs
from jobqueue.retention.history import keep_by
from jobqueue.transitions.operator import cancel_each, discard_each, release_each, retry_each

_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


def change(verb: str, ids: Sequence[int], only: Q, *, using: str) -> int:
    """Apply `verb` to those of these jobs of which `only` is true when they are locked; how many it changed."""
    return _VERBS[verb](ids, using=using, only=only) if ids else 0


def _delete(ids: Sequence[int], *, using: str, only: Q) -> int:
    groups: dict[tuple[str, int], dict[int, datetime]] = defaultdict(dict)
    rows = Job.objects.using(using).filter(pk__in=list(ids)).annotate(matches=only)
    # Waits for locks as the other verbs do: delete_jobs() would leave out what others have locked.
    ended = vendor(using).force_index(rows.filter(status__in=_ENDED), "PRIMARY").order_by("pk").select_for_update()
    columns = ("matches", "pk", "queue", "status", Coalesce("finished_at", "updated_at"))
    for matches, job_id, queue, status, ended_at in ended.values_list(*columns):
        if matches:
            groups[queue, status][job_id] = ended_at
    keeps, gone = keep_by(load()), 0
    for (queue, status), jobs in sorted(groups.items()):
        try:
            keep = keeps(queue, Job.Status(status).name.lower())
            gone += len(delete_jobs(jobs, status, using=using, keep=keep))
        except REFUSALS:
            # A row of the project protects one of the jobs. The others are deleted one by one.
            gone += sum(delete_job(job_id, using=using) for job_id in jobs)
    return gone


class _Change(Protocol):
    def __call__(self, ids: Sequence[int], /, *, using: str, only: Q) -> int: ...


_VERBS: dict[str, _Change] = {
    AuditEvent.Verb.RETRY: retry_each,
    AuditEvent.Verb.CANCEL: cancel_each,
    AuditEvent.Verb.DISCARD: discard_each,
    AuditEvent.Verb.RELEASE: release_each,
    AuditEvent.Verb.PRUNE: _delete,
}
