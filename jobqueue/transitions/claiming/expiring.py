"""READY -> CANCELED when a claim meets a job whose time is over."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.exceptions import JobExpired
from jobqueue.failures import FailureCause, describe
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.ordering.promote import promote_next
from jobqueue.signals import job_canceled, send
from jobqueue.transitions.claiming.request import Row
from jobqueue.transitions.leases import canceled

EXPIRED_BATCH = 500  # where one has expired there are often many


def expired(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those of `rows` that may run, and those whose time is over."""
    late = [row for row in rows if row.valid_until is not None and row.valid_until <= row.now]
    return ([row for row in rows if row not in late] if late else list(rows)), late


def end_expired(rows: JobQuerySet) -> None:
    """CANCELED now, cause EXPIRED."""
    error = JobExpired("its expires_at came before this attempt began; retry runs it all the same")
    rows.update(**canceled(), cause=FailureCause.EXPIRED.value, last_error=describe(error))


def announce_expired(rows: Sequence[Row], queue: str, using: str) -> None:
    """Tell that these jobs have ended."""
    promote_next(((queue, row.ordering_key) for row in rows), using=using)
    for row in rows:
        send(job_canceled, Job, job_id=row.pk, queue=queue, task=row.task, using=using)
