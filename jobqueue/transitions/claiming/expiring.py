"""READY -> CANCELED when a claim finds a job whose expires_at has passed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from django.db import Error

from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, JobExpired
from jobqueue.failures import FailureCause, describe
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.transitions.claiming.request import Row
from jobqueue.transitions.leases import canceled

logger = logging.getLogger("jobqueue.transitions")

EXPIRED_BATCH = 500  # where one has expired there are often many


def expired(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """`rows` split into those that may run and those that have expired."""
    late = [row for row in rows if row.valid_until is not None and row.valid_until <= row.now]
    return ([row for row in rows if row not in late] if late else list(rows)), late


def end_expired(rows: JobQuerySet) -> None:
    """End `rows` CANCELED, cause EXPIRED."""
    error = JobExpired("its expires_at came before this attempt began; retry runs it all the same")
    rows.update(**canceled(), cause=FailureCause.EXPIRED.value, fingerprint=None, last_error=describe(error))


def ended_now(rows: Sequence[Row], *, using: str) -> list[tuple[Row, datetime | None]]:
    """`rows`, which this transaction has ended, each with its finished_at, which identifies this end of the job."""
    ids = [row.pk for row in rows]
    instants = dict(Job.objects.using(using).filter(pk__in=ids).values_list("pk", "finished_at"))
    return [(row, instants.get(row.pk)) for row in rows]


def ended_before(ended: Sequence[tuple[Row, datetime | None]], late: Sequence[Row], *, using: str) -> list[Row]:
    """The rows that earlier tries of a pass have ended and committed; `late` are those of its last try."""
    known = {row.pk for row in late}
    earlier = [(row, instant) for row, instant in ended if row.pk not in known]
    if not earlier:
        return []
    rows = Job.objects.using(using).filter(pk__in=[row.pk for row, _ in earlier], status=Job.Status.CANCELED)
    instants: dict[int, datetime | None]
    try:
        instants = retry_transient("claim", partial(dict, rows.values_list("pk", "finished_at")), using=using)
    except (Error, DatabaseBusy) as error:
        # The jobs that were claimed must run in any case.
        logger.warning("no signal is sent for expired jobs that a lost commit may have ended: %s", error)
        return []
    return [row for row, instant in earlier if instant is not None and instants.get(row.pk) == instant]
