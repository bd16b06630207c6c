"""Deletion of single ended jobs, whatever their age."""

from __future__ import annotations

from functools import partial

from django.db.models.functions import Coalesce

from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job
from jobqueue.retention.deleting import REFUSALS, delete_jobs
from jobqueue.retention.history import keep_by

_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


def delete_job(job_id: int, *, using: str | None = None) -> bool:
    """Delete an ended job with its attempts, or move it to the archive where RETENTION says so. Whether it is gone.

    False for a job that has not ended or that another transaction has locked, for one that is to stay (those_that_stay)
    and if a protected row of the project refers to it. A dedupe key that it held is free afterwards.
    """
    alias = alias_of(using)
    ended = Job.objects.using(alias).filter(pk=job_id, status__in=_ENDED)
    columns = ended.values_list("queue", "status", Coalesce("finished_at", "updated_at"))
    found = retry_transient("housekeeping", partial(columns.first), using=alias)
    if found is None:
        return False
    queue, status, ended_at = found
    keep = keep_by(load())(queue, Job.Status(status).name.lower())
    try:
        return bool(delete_jobs({job_id: ended_at}, status, using=alias, keep=keep))
    except REFUSALS:
        return False
