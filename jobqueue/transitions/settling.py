"""PROCESSING -> DONE, and PROCESSING -> READY or CANCELED without using an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.dispatch import Signal

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.by_key import ByKey
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import PayloadError, ResultError
from jobqueue.failures import storable
from jobqueue.models import Job
from jobqueue.models.querysets import JobQuerySet
from jobqueue.names import check_seconds
from jobqueue.payload import JSON, encode
from jobqueue.signals import job_canceled, job_done, job_parked, send
from jobqueue.transitions.leases import RELEASED, Lease, by_token, held, lost
from jobqueue.transitions.rows import in_state


def ack(lease: Lease, *, result: JSON = None) -> None:
    """Record success with `result` (JSON; None is stored as NULL) and end the lease. One statement.

    Raises LeaseLost when another holder took over; nothing was written. A lease that ran out but was not reaped may
    still ack. Raises ResultError for a result that cannot be stored: nothing was written, the lease is still held.
    """
    _settle(lease, "ack", _done(encode_result(result)))
    _announce_done([lease])


def ack_many(leases: Sequence[Lease], *, results: Sequence[JSON] | None = None) -> list[Lease]:
    """ack() for each lease with its result, one statement per token; returns those that were lost."""
    encoded = {
        lease.job_id: encode_result(result)
        for lease, result in zip(leases, results if results is not None else [None] * len(leases), strict=True)
    }
    gone: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        changes = _done(_case({lease.job_id: encoded[lease.job_id] for lease in group}))
        gone += _settle_group(using, token, group, partial(_update, changes))
    for lease in gone:
        lost(lease, "ack")
    missing = {(lease.job_id, lease.fence) for lease in gone}
    _announce_done([lease for lease in leases if (lease.job_id, lease.fence) not in missing])
    return gone


def snooze(lease: Lease, *, delay_seconds: float, reason: str = "snoozed") -> None:
    """Give the job back for `delay_seconds` from now without using an attempt. Raises LeaseLost like ack."""
    seconds = check_seconds(delay_seconds, "delay_seconds", zero=True)
    changes = _given_back(storable(reason, 200)) | {"run_at": UtcNowPlus(seconds)}
    _settle(lease, "snooze", changes)
    send(job_parked, Job, **_facts(lease), reason=reason)


def release(lease: Lease) -> None:
    """Give the job back at once, run_at unchanged, without using an attempt. Raises LeaseLost like ack.

    A job that was asked to cancel is not given back by release or snooze: it ends CANCELED.
    """
    _settle(lease, "release", _given_back(None))


def release_many(leases: Sequence[Lease]) -> list[Lease]:
    """release() for each lease; returns those that were lost."""
    gone: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        gone += _settle_group(using, token, group, partial(_give_back, _given_back(None)))
    for lease in gone:
        lost(lease, "release")
    return gone


def cancel_held(lease: Lease) -> None:
    """PROCESSING -> CANCELED by its holder: the body stopped for a cancel request. Raises LeaseLost like ack."""
    _settle(lease, "cancel", canceled())
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


def encode_result(result: JSON) -> Encoded | None:
    """`result` as stored text; None stays None. Raises ResultError for what cannot be stored."""
    if result is None or isinstance(result, Encoded):
        return result
    try:
        limit = load().max_result_bytes
        return Encoded(encode(result, max_bytes=limit, setting="MAX_RESULT_BYTES", what="result"))
    except PayloadError as error:
        raise ResultError(str(error)) from None
    except RecursionError:
        raise ResultError("result refers to itself. Nothing was written.") from None


def was_acked(lease: Lease) -> bool:
    """Whether the job is DONE by this lease: only its holder can have written DONE under its fence."""
    rows = Job.objects.using(lease.using).filter(pk=lease.job_id, status=Job.Status.DONE, fence=lease.fence)
    return rows.exists()


def _settle(lease: Lease, verb: str, changes: dict[str, Any]) -> None:
    tries = 0
    write = _give_back_one if verb in ("release", "snooze") else _update

    def settle() -> bool:
        nonlocal tries
        tries += 1
        # A commit whose answer was lost leaves no token behind; the fence tells our own DONE from another's.
        return bool(write(changes, held(lease))) or (tries > 1 and verb == "ack" and was_acked(lease))

    if not retry_transient(settle, using=lease.using):
        raise lost(lease, verb)


def _settle_group(using: str, token: bytes, group: list[Lease], write: Callable[[JobQuerySet], int]) -> list[Lease]:
    """Settle leases of one token in one transaction; those that were lost. Usually it is one statement."""
    ids = [lease.job_id for lease in group]
    tries = 0

    def rows(job_ids: Iterable[int]) -> JobQuerySet:
        found = in_state(job_ids, Job.Status.PROCESSING, using=using)
        return found.filter(lock_token=token).order_by("pk")

    def all_of_them() -> list[Lease]:
        nonlocal tries
        tries += 1
        with vendor(using).transaction(connections[using]):
            if write(rows(ids).order_by()) == len(ids):
                return []
            # Which ones were lost can only be told before the others have changed.
            raise _SomeLost

    def what_is_held() -> list[Lease]:
        with vendor(using).transaction(connections[using]):
            mine = set(rows(ids).select_for_update().values_list("pk", flat=True))
            write(rows(mine).order_by())
            return [lease for lease in group if lease.job_id not in mine]

    try:
        return retry_transient(all_of_them, using=using)
    except _SomeLost:
        gone = retry_transient(what_is_held, using=using)
        return [lease for lease in gone if not (tries > 1 and was_acked(lease))]


class _SomeLost(Exception):
    pass


def _update(changes: dict[str, Any], rows: JobQuerySet) -> int:
    return rows.update(**changes)


def _give_back_one(changes: dict[str, Any], rows: JobQuerySet) -> int:
    """One statement for nearly every job, so that a redo after a lost connection cannot meet its own work."""
    waiting = rows.filter(cancel_requested_at__isnull=True).update(**changes)
    return waiting or rows.filter(cancel_requested_at__isnull=False).update(**canceled())


def _give_back(changes: dict[str, Any], rows: JobQuerySet) -> int:
    """A job that was asked to cancel does not wait for another run."""
    count = rows.filter(cancel_requested_at__isnull=True).update(**changes)
    return count + rows.filter(cancel_requested_at__isnull=False).update(**canceled())


def _done(result: Any) -> dict[str, Any]:
    return {
        "status": Job.Status.DONE,
        "result": result,
        "finished_at": UtcNow(),
        "updated_at": UtcNow(),
        **RELEASED,
    }


def _given_back(reason: str | None) -> dict[str, Any]:
    return {"status": Job.Status.READY, "updated_at": UtcNow(), "wait_reason": reason, **RELEASED}


def _case(results: dict[int, Encoded | None]) -> ByKey | None:
    stored = {job_id: text for job_id, text in results.items() if text is not None}
    return ByKey(stored) if stored else None


def _announce_done(leases: Iterable[Lease]) -> None:
    _tell(job_done, leases)


def _tell(signal: Signal, leases: Iterable[Lease]) -> None:
    if signal.receivers:
        for lease in leases:
            send(signal, Job, **_facts(lease), attempt=lease.attempt, worker=lease.worker)


def _facts(lease: Lease) -> dict[str, Any]:
    return {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task, "using": lease.using}
