"""READY -> CANCELED when a claim meets a job whose time is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from jobqueue.exceptions import JobExpired
from jobqueue.failures import FailureCause, describe
from jobqueue.models import Job
from jobqueue.signals import job_canceled, send
from jobqueue.transitions.rows import in_state
from jobqueue.transitions.settling import canceled

EXPIRED_BATCH = 500  # where one has expired there are often many


class Claimable(Protocol):
    """What a claim has read of a row."""

    @property
    def pk(self) -> int:
        """Its id."""

    @property
    def task(self) -> str | None:
        """Its task."""

    @property
    def expires_at(self) -> datetime | None:
        """When it expires."""

    @property
    def now(self) -> datetime:
        """The database's clock at the read."""


R = TypeVar("R", bound=Claimable)


def end_expired(rows: Sequence[R], *, using: str) -> list[R]:
    """Those of the locked READY `rows` that have expired; their jobs are CANCELED now, cause EXPIRED."""
    late = [row for row in rows if row.expires_at is not None and row.expires_at <= row.now]
    if late:
        error = JobExpired("its expires_at came before this attempt began; retry runs it all the same")
        changes = canceled() | {"cause": FailureCause.EXPIRED.value, "last_error": describe(error)}
        in_state([row.pk for row in late], Job.Status.READY, using=using).update(**changes)
    return late


def announce_expired(rows: Iterable[Any], queue: str, using: str) -> None:
    """Tell that these jobs have ended."""
    for row in rows:
        send(job_canceled, Job, job_id=row.pk, queue=queue, task=row.task, using=using)
