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
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.ordering.promote import promote_next
from jobqueue.signals import job_canceled, job_parked, send
from jobqueue.transitions.earlier_tries import ended_uncharged
from jobqueue.transitions.leases import RELEASED, Lease, by_token, canceled, held, lost
from jobqueue.validation import check_seconds


def snooze(lease: Lease, *, delay_seconds: float, reason: str = "snoozed", again: bool = False) -> Job.Status:
    """Give the job back for `delay_seconds` from now without using an attempt; READY. Raises LeaseLost like ack.

    CANCELED if the job was asked to cancel: it does not wait for another run. `again`: an earlier call with this lease
    ended in an error and may have been committed all the same; then that is not called lost.
    """
    seconds = check_seconds(delay_seconds, "delay_seconds", zero=True)
    changes = _given_back(storable(reason, 200)) | {"run_at": UtcNowPlus(seconds)}
    status = _settle(lease, "snooze", partial(_give_back_one, changes), again=again)
    if status is Job.Status.READY:
        send(job_parked, Job, **_facts(lease), reason=reason)
    return status


def snooze_many(leases: Sequence[Lease], *, delay_seconds: float, reason: str) -> list[Lease]:
    """snooze() for each lease; returns those that were lost and never raises for them."""
    seconds = check_seconds(delay_seconds, "delay_seconds", zero=True)
    changes = _given_back(storable(reason, 200)) | {"run_at": UtcNowPlus(seconds)}
    return _give_back_many(leases, changes, "snooze", reason)


def release(lease: Lease) -> Job.Status:
    """Give the job back at once, run_at unchanged, without using an attempt; READY. Raises LeaseLost like ack.

    A job that was asked to cancel is not given back by release or snooze: it ends CANCELED.
    """
    return _settle(lease, "release", partial(_give_back_one, _given_back(None)))


def release_many(leases: Sequence[Lease]) -> list[Lease]:
    """release() for each lease; returns those that were lost."""
    return _give_back_many(leases, _given_back(None), "release")


def cancel_held(lease: Lease, *, again: bool = False) -> None:
    """PROCESSING -> CANCELED by its holder: the body stopped for a cancel request. Raises LeaseLost like ack.

    `again` as in snooze().
    """
    _settle(lease, "cancel", _cancel_one, again=again)


def _settle(
    lease: Lease, verb: str, write: Callable[[JobQuerySet], Job.Status | None], *, again: bool = False
) -> Job.Status:
    """Write by the guard of the lease; READY or CANCELED. Raises LeaseLost."""
    tries = int(again)

    def once() -> Job.Status | None:
        nonlocal tries
        tries += 1
        return write(held(lease))

    status = retry_transient(once, using=lease.using)
    if status is None and tries > 1:
        # An earlier try may have been committed, though its answer was lost.
        status = ended_uncharged([lease], using=lease.using).get(lease.job_id)
        status = None if verb == "cancel" and status is not Job.Status.CANCELED else status
    if status is None:
        raise lost(lease, verb)
    promote_next([(lease.queue, lease.ordering_key)], using=lease.using)
    if status is Job.Status.CANCELED:
        send(job_canceled, Job, **_facts(lease))
    return status


def _give_back_many(
    leases: Sequence[Lease], changes: dict[str, Any], verb: str, reason: str | None = None
) -> list[Lease]:
    """Those that were lost. `reason`: why the others are parked, if they are."""
    gone: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        ended = _give_back_group(using, token, group, changes)
        promote_next(((lease.queue, lease.ordering_key) for lease in group), using=using)
        for lease in group:
            status = ended.get(lease.job_id)
            if status is Job.Status.CANCELED:
                send(job_canceled, Job, **_facts(lease))
            elif status is Job.Status.READY and reason is not None:
                send(job_parked, Job, **_facts(lease), reason=reason)
        gone += [lease for lease in group if lease.job_id not in ended]
    for lease in gone:
        lost(lease, verb)
    return gone


def _give_back_group(using: str, token: bytes, group: list[Lease], changes: dict[str, Any]) -> dict[int, Job.Status]:
    """Give back leases of one token in one transaction; what became of those that were not lost."""
    tries = 0

    def rows(job_ids: Iterable[int]) -> JobQuerySet:
        return in_state(job_ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)

    def give_back() -> dict[int, Job.Status]:
        nonlocal tries
        tries += 1
        with vendor(using).transaction(connections[using]):
            held_now = rows(lease.job_id for lease in group).order_by("pk").select_for_update()
            asked = dict(held_now.values_list("pk", "cancel_requested_at"))
            waiting = [job_id for job_id, asked_at in asked.items() if asked_at is None]
            ending = [job_id for job_id, asked_at in asked.items() if asked_at is not None]
            if waiting:
                rows(waiting).update(**changes)
            if ending:
                rows(ending).update(**canceled())
            return dict.fromkeys(waiting, Job.Status.READY) | dict.fromkeys(ending, Job.Status.CANCELED)

    ended = retry_transient(give_back, using=using)
    missing = [lease for lease in group if lease.job_id not in ended]
    if missing and tries > 1:
        ended |= ended_uncharged(missing, using=using)
    return ended


def _give_back_one(changes: dict[str, Any], rows: JobQuerySet) -> Job.Status | None:
    """One statement for nearly every job. A job that was asked to cancel does not wait for another run."""
    if rows.filter(cancel_requested_at__isnull=True).update(**changes):
        return Job.Status.READY
    return _cancel_one(rows.filter(cancel_requested_at__isnull=False))


def _cancel_one(rows: JobQuerySet) -> Job.Status | None:
    return Job.Status.CANCELED if rows.update(**canceled()) else None


def _given_back(reason: str | None) -> dict[str, Any]:
    return {"status": Job.Status.READY, "updated_at": UtcNow(), "wait_reason": reason, **RELEASED}


def _facts(lease: Lease) -> dict[str, Any]:
    return {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task, "using": lease.using}
