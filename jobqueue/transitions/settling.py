"""PROCESSING -> DONE, and PROCESSING -> READY or CANCELED without using an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.db.models import Case, Value, When
from django.dispatch import Signal

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import PayloadError, ResultError
from jobqueue.failures import storable
from jobqueue.models import Job
from jobqueue.names import check_seconds
from jobqueue.payload import JSON, encode
from jobqueue.signals import job_canceled, job_done, job_parked, send
from jobqueue.transitions.leases import RELEASED, Lease, by_token, held, lost


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
        ids = [lease.job_id for lease in group]
        rows = Job.objects.using(using).filter(pk__in=ids, status=Job.Status.PROCESSING, lock_token=token)
        changes = _done(_case({i: encoded[i] for i in ids}))
        count = retry_transient(partial(rows.update, **changes), using=using)
        if count < len(group):
            gone += [lease for lease in group if not was_acked(lease)]
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
    """Give the job back at once, run_at unchanged, without using an attempt. Raises LeaseLost like ack."""
    _settle(lease, "release", _given_back(None))


def release_many(leases: Sequence[Lease]) -> list[Lease]:
    """release() for each lease; returns those that were lost."""
    gone: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        ids = [lease.job_id for lease in group]
        held_ids = retry_transient(partial(_release, using, token, ids), using=using)
        gone += [lease for lease in group if lease.job_id not in held_ids]
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

    def write() -> bool:
        nonlocal tries
        tries += 1
        if held(lease).update(**changes):
            return True
        # A commit whose answer was lost leaves no token behind; the fence tells our own DONE from another's.
        return tries > 1 and verb == "ack" and was_acked(lease)

    if not retry_transient(write, using=lease.using):
        raise lost(lease, verb)


def _release(using: str, token: bytes, ids: list[int]) -> set[int]:
    with vendor(using).transaction(connections[using]):
        rows = Job.objects.using(using).filter(pk__in=ids, status=Job.Status.PROCESSING, lock_token=token)
        held_ids = set(rows.select_for_update().order_by("pk").values_list("pk", flat=True))
        rows.filter(pk__in=held_ids).update(**_given_back(None))
        return held_ids


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


def _case(results: dict[int, Encoded | None]) -> Any:
    field = Job._meta.get_field("result")
    stored = {job_id: text for job_id, text in results.items() if text is not None}
    if not stored:
        return None
    return Case(
        *(When(pk=job_id, then=Value(text, output_field=field)) for job_id, text in stored.items()),
        default=None,
        output_field=field,
    )


def _announce_done(leases: Iterable[Lease]) -> None:
    _tell(job_done, leases)


def _tell(signal: Signal, leases: Iterable[Lease]) -> None:
    if signal.receivers:
        for lease in leases:
            send(signal, Job, **_facts(lease), attempt=lease.attempt, worker=lease.worker)


def _facts(lease: Lease) -> dict[str, Any]:
    return {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task, "using": lease.using}
