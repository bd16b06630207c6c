"""Deletes the attempts of jobs that plain SQL has deleted: those of other jobs are deleted with their job."""

from __future__ import annotations

from functools import partial

from django.db.models import Exists, OuterRef

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job, JobAttempt

#: attempts that one call reads
SLICE = 5000


def delete_attempts_without_job(after_id: int, *, using: str) -> tuple[int, int]:
    """Look at the next SLICE attempts behind an id. Returns how many were deleted, and where to go on; 0: at the first.

    Their ids are read before it is looked for their jobs: a job is always older than its attempts.
    """
    rows = JobAttempt.objects.using(using).filter(pk__gt=after_id).order_by("pk")
    ids: list[int] = retry_transient(
        "housekeeping", partial(list, rows.values_list("pk", flat=True)[:SLICE]), using=using
    )
    if not ids:
        return 0, 0
    seen = JobAttempt.objects.using(using).filter(pk__range=(ids[0], ids[-1]))
    lost = seen.filter(~Exists(Job.objects.filter(pk=OuterRef("job_id")))).values_list("pk", flat=True)
    found: list[int] = retry_transient("housekeeping", partial(list, lost), using=using)
    deleted = 0
    if found:
        delete = partial(vendor(using).delete_by_key, JobAttempt.objects.using(using), found)
        deleted = retry_transient("housekeeping", delete, using=using)
    return deleted, ids[-1] if len(ids) == SLICE else 0
