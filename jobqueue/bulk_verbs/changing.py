"""The verbs for the jobs of one chunk, in the open transaction of that chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from django.db.models.functions import Coalesce

from jobqueue.bulk_verbs.filtering import quiet_since, was_quiet_since
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.models import AuditEvent, Job
from jobqueue.retention.by_hand import delete_job
from jobqueue.retention.deleting import REFUSALS, delete_jobs
from jobqueue.retention.history import keep_by
from jobqueue.transitions.operator import cancel_each, discard_each, release_held, retry_each

_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


def change(verb: str, ids: Sequence[int], *, since: datetime, using: str) -> int:
    """Apply `verb`, recorded at `since`, to these jobs; how many it changed. The others do not allow it any more."""
    return _VERBS[verb](ids, since, using) if ids else 0


def _retry(ids: Sequence[int], since: datetime, using: str) -> int:
    # Checked again in the locked row: another bulk action may have retried the job, which then failed again.
    return retry_each(ids, using=using, only=partial(was_quiet_since, AuditEvent.Verb.RETRY, since))


def _discard(ids: Sequence[int], since: datetime, using: str) -> int:
    return discard_each(ids, using=using, only=partial(was_quiet_since, AuditEvent.Verb.DISCARD, since))


def _cancel(ids: Sequence[int], since: datetime, using: str) -> int:
    return cancel_each(ids, using=using)


def _release(ids: Sequence[int], since: datetime, using: str) -> int:
    return sum(release_held(job_id, using=using) for job_id in ids)


def _delete(ids: Sequence[int], since: datetime, using: str) -> int:
    groups: dict[tuple[str, int], dict[int, datetime]] = defaultdict(dict)
    rows = Job.objects.using(using).filter(quiet_since(AuditEvent.Verb.PRUNE, since), pk__in=list(ids))
    # Waits for locks as the other verbs do: delete_jobs() would leave out what others have locked.
    ended = vendor(using).force_index(rows.filter(status__in=_ENDED), "PRIMARY").order_by("pk").select_for_update()
    columns = ("pk", "queue", "status", Coalesce("finished_at", "updated_at"))
    for job_id, queue, status, ended_at in ended.values_list(*columns):
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


_VERBS: dict[str, Callable[[Sequence[int], datetime, str], int]] = {
    AuditEvent.Verb.RETRY: _retry,
    AuditEvent.Verb.CANCEL: _cancel,
    AuditEvent.Verb.DISCARD: _discard,
    AuditEvent.Verb.RELEASE: _release,
    AuditEvent.Verb.PRUNE: _delete,
}
