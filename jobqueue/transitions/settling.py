"""PROCESSING -> READY or CANCELED without using an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.failures import storable
from jobqueue.models import Job
from jobqueue.models.querysets import JobQuerySet
from jobqueue.names import check_seconds
from jobqueue.signals import job_canceled, job_parked, send
from jobqueue.transitions.advancing import go_on
from jobqueue.transitions.leases import RELEASED, Lease, by_token, held, lost
from jobqueue.transitions.rows import in_state


def snooze(lease: Lease, *, delay_seconds: float, reason: str = "snoozed") -> None:
    """Give the job back for `delay_seconds` from now without using an attempt. Raises LeaseLost like ack."""
    seconds = check_seconds(delay_seconds, "delay_seconds", zero=True)
    changes = _given_back(storable(reason, 200)) | {"run_at": UtcNowPlus(seconds)}
    _settle(lease, "snooze", partial(_give_back_one, changes))
    send(job_parked, Job, **_facts(lease), reason=reason)


def release(lease: Lease) -> None:
    """Give the job back at once, run_at unchanged, without using an attempt. Raises LeaseLost like ack.

    A job that was asked to cancel is not given back by release or snooze: it ends CANCELED.
    """
    _settle(lease, "release", partial(_give_back_one, _given_back(None)))


def release_many(leases: Sequence[Lease]) -> list[Lease]:
    """release() for each lease; returns those that were lost."""
    gone: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        gone += _release_group(using, token, group)
        go_on(((lease.queue, lease.ordering_key) for lease in group), using=using)
    for lease in gone:
        lost(lease, "release")
    return gone


def cancel_held(lease: Lease) -> None:
    """PROCESSING -> CANCELED by its holder: the body stopped for a cancel request. Raises LeaseLost like ack."""
    _settle(lease, "cancel", lambda rows: rows.update(**canceled()))
    send(job_canceled, Job, **_facts(lease))


def canceled() -> dict[str, Any]:
    """The columns of a job that ends CANCELED, from any state."""
    return {
        "status": Job.Status.CANCELED,
        "finished_at": UtcNow(),
        "updated_at": UtcNow(),
        "wait_reason": None,
        **RELEASED,
    }


def _settle(lease: Lease, verb: str, write: Callable[[JobQuerySet], int]) -> None:
    if not retry_transient(lambda: write(held(lease)), using=lease.using):
        raise lost(lease, verb)
    go_on([(lease.queue, lease.ordering_key)], using=lease.using)


def _release_group(using: str, token: bytes, group: list[Lease]) -> list[Lease]:
    """Give back leases of one token in one transaction; those that were lost."""

    def rows(job_ids: Iterable[int]) -> JobQuerySet:
        return in_state(job_ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)

    def give_back() -> list[Lease]:
        with vendor(using).transaction(connections[using]):
            held_now = rows(lease.job_id for lease in group).order_by("pk").select_for_update()
            mine = set(held_now.values_list("pk", flat=True))
            _give_back(_given_back(None), rows(mine))
            return [lease for lease in group if lease.job_id not in mine]

    return retry_transient(give_back, using=using)


def _give_back_one(changes: dict[str, Any], rows: JobQuerySet) -> int:
    """One statement for nearly every job, so that a redo after a lost connection cannot meet its own work."""
    waiting = rows.filter(cancel_requested_at__isnull=True).update(**changes)
    return waiting or rows.filter(cancel_requested_at__isnull=False).update(**canceled())


def _give_back(changes: dict[str, Any], rows: JobQuerySet) -> int:
    """A job that was asked to cancel does not wait for another run."""
    count = rows.filter(cancel_requested_at__isnull=True).update(**changes)
    return count + rows.filter(cancel_requested_at__isnull=False).update(**canceled())


def _given_back(reason: str | None) -> dict[str, Any]:
    return {"status": Job.Status.READY, "updated_at": UtcNow(), "wait_reason": reason, **RELEASED}


def _facts(lease: Lease) -> dict[str, Any]:
    return {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task, "using": lease.using}
