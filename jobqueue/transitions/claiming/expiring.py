"""READY -> CANCELED when a claim meets a job whose time is over."""

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
from jobqueue.ordering.promote import promote_next
from jobqueue.signals import job_canceled, send
from jobqueue.transitions.claiming.request import Row
from jobqueue.transitions.leases import canceled

logger = logging.getLogger("jobqueue.transitions")

EXPIRED_BATCH = 500  # where one has expired there are often many


def expired(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those of `rows` that may run, and those whose time is over."""
    late = [row for row in rows if row.valid_until is not None and row.valid_until <= row.now]
    return ([row for row in rows if row not in late] if late else list(rows)), late


def end_expired(rows: JobQuerySet) -> None:
    """CANCELED now, cause EXPIRED."""
    error = JobExpired("its expires_at came before this attempt began; retry runs it all the same")
    rows.update(**canceled(), cause=FailureCause.EXPIRED.value, last_error=describe(error))


def ended_now(rows: Sequence[Row], *, using: str) -> list[tuple[Row, datetime | None]]:
    """`rows`, which this transaction has ended, each with its finished_at, by which it can be told from another end."""
    ids = [row.pk for row in rows]
    instants = dict(Job.objects.using(using).filter(pk__in=ids).values_list("pk", "finished_at"))
    return [(row, instants.get(row.pk)) for row in rows]


def ended_before(ended: Sequence[tuple[Row, datetime | None]], late: Sequence[Row], *, using: str) -> list[Row]:
    """Of what all tries of a pass have `ended`, those that are on record and not among the `late` of its last try."""
    known = {row.pk for row in late}
    earlier = [(row, instant) for row, instant in ended if row.pk not in known]
    if not earlier:
        return []
    rows = Job.objects.using(using).filter(pk__in=[row.pk for row, _ in earlier], status=Job.Status.CANCELED)
    instants: dict[int, datetime | None]
    try:
        instants = retry_transient(partial(dict, rows.values_list("pk", "finished_at")), using=using)
    except (Error, DatabaseBusy) as error:
        # The jobs that were claimed must be run all the same.
        logger.warning("nobody is told of expired jobs that a lost commit may have ended: %s", error)
        return []
    return [row for row, instant in earlier if instant is not None and instants.get(row.pk) == instant]


def announce_expired(rows: Sequence[Row], queue: str, using: str) -> None:
    """Tell that these jobs have ended."""
    promote_next(((queue, row.ordering_key) for row in rows), using=using)
    for row in rows:
        send(job_canceled, Job, job_id=row.pk, queue=queue, task=row.task, using=using)
