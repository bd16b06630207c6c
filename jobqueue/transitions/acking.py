"""PROCESSING -> DONE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from django.db import transaction
from django.db.models import F

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import AnyOfArray, ByKey, Slot
from jobqueue.db.fields import Encoded, TokenField
from jobqueue.db.prepared import Prepared, prepare_change, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue, PayloadError, ResultError, SoftTimeout
from jobqueue.failures import summary
from jobqueue.models import Job
from jobqueue.models.rows import any_in_state, in_state
from jobqueue.ordering.promote import promote_next
from jobqueue.payload import JSON, encode
from jobqueue.signals import job_done, send
from jobqueue.transitions.ack_observers import notify_ack_observer
from jobqueue.transitions.leases import RELEASED, Lease, by_token, lost
from jobqueue.transitions.locked import passes_locked

_TOKEN = Slot("token", TokenField())
# Escaped and in four bytes a character this is below the smallest default max_allowed_packet (MariaDB, 16 MB).
_STATEMENT_CHARS = 2_000_000


def ack(lease: Lease, *, result: JSON = None) -> None:
    """Record success with `result` (JSON; None is stored as NULL) and end the lease. One statement.

    Raises LeaseLost when another holder took over; nothing was written. A lease that ran out but was not reaped may
    still ack. Raises ResultError for a result that cannot be stored: nothing was written, the lease is still held.
    """
    if _ack_group(lease.using, lease.token, [lease], [encode_result(result)], again=False):
        raise lost(lease, "ack")
    promote_next([(lease.queue, lease.ordering_key)], using=lease.using)
    _announce([lease])


def ack_many(
    leases: Iterable[Lease],
    *,
    results: Iterable[JSON] | None = None,
    again: bool = False,
    locked: list[Lease] | None = None,
) -> list[Lease]:
    """ack() for each lease with its result, one statement per token; returns those that were lost.

    `locked`: leases whose rows somebody else has locked are put into this list; they are neither acked nor lost, and
    nobody waits for them. Without it, and inside an open transaction, they are waited for.

    `again`: an earlier call with these leases ended in an error and may have been committed all the same; jobs that are
    DONE by these leases then count as acked. Raises InvalidValue unless there is a result for each lease, and
    ResultError as ack() does: nothing was written.
    """
    leases = list(leases)
    values = [None] * len(leases) if results is None else list(results)
    if len(values) != len(leases):
        raise InvalidValue(f"ack_many() got {len(leases)} leases and {len(values)} results. Nothing was written.")
    encoded = {(lease.job_id, lease.fence): encode_result(result) for lease, result in zip(leases, values, strict=True)}
    gone: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        for chunk in _chunks(group, encoded):
            texts = [encoded[lease.job_id, lease.fence] for lease in chunk]
            gone += _ack_group(using, token, chunk, texts, again=again, locked=locked)
            # Now: the next statement may fail.
            promote_next(((lease.queue, lease.ordering_key) for lease in chunk), using=using)
    for lease in gone:
        lost(lease, "ack")
    missing = {(lease.job_id, lease.fence) for lease in [*gone, *(locked or ())]}
    _announce([lease for lease in leases if (lease.job_id, lease.fence) not in missing])
    return gone


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
    except SoftTimeout:
        raise
    except Exception as error:
        # A class of the user's own, or a dict that another thread changes meanwhile.
        raise ResultError(f"result cannot be read ({summary(error)}). Nothing was written.") from error


def _chunks(leases: Sequence[Lease], encoded: Mapping[tuple[int, int], Encoded | None]) -> Iterator[list[Lease]]:
    """Few enough results for one statement, whatever the server's limit of a packet."""
    chunk: list[Lease] = []
    size = 0
    for lease in leases:
        length = len(encoded[lease.job_id, lease.fence] or "")
        if chunk and size + length > _STATEMENT_CHARS:
            yield chunk
            chunk, size = [], 0
        chunk.append(lease)
        size += length
    if chunk:
        yield chunk


def _ack_group(
    using: str,
    token: bytes,
    group: Sequence[Lease],
    texts: Sequence[Encoded | None],
    *,
    again: bool,
    locked: list[Lease] | None = None,
) -> Iterable[Lease]:
    """Ack leases of one token by one statement; those that were lost."""
    ids = [lease.job_id for lease in group]
    results = {job_id: text for job_id, text in zip(ids, texts, strict=True) if text is not None}
    passing = locked is not None and passes_locked(using)
    tries = int(again)

    def write() -> int:
        nonlocal tries
        tries += 1
        return _write_done(using, token, ids, results, passing)

    count = retry_transient(write, using=using)
    if count == len(ids):
        return []
    done = retry_transient(lambda: _done_by(group, using), using=using)
    if tries == 1 and len(done) > count:
        # Some were acked by an earlier call. One statement gives all its rows the same finished_at.
        latest = max(done.values()) if count else None
        done = {job_id: finished_at for job_id, finished_at in done.items() if finished_at == latest}
    rest = [lease for lease in group if lease.job_id not in done]
    if locked is None or not passing:
        return rest
    # What was passed over is held still. (It may have been let go meanwhile: then it is tried again in vain.)
    mine = in_state((lease.job_id for lease in rest), Job.Status.PROCESSING, using=using).filter(lock_token=token)
    waiting: set[int] = retry_transient(lambda: set(mine.values_list("pk", flat=True)), using=using)
    locked += [lease for lease in rest if lease.job_id in waiting]
    return [lease for lease in rest if lease.job_id not in waiting]


def _write_done(using: str, token: bytes, ids: list[int], results: Mapping[int, Encoded], passing: bool) -> int:
    """How many of the jobs were held and are DONE now; `passing` leaves those that somebody has locked."""
    at_once = passing and vendor(using).has_update_returning
    if passing and not at_once:
        # By itself, so that its locks are given back with its answer: a transaction would be four round trips more.
        free = {job_id for (job_id,) in _free(using).rows(ids=ids, token=token)}
        ids = [job_id for job_id in ids if job_id in free]
        if not ids:
            return 0
    wanted = {job_id: text for job_id, text in results.items() if job_id in set(ids)} if passing else results
    return _done(using, at_once).change(ids=ids, token=token, result=wanted)


@cache
def _done(using: str, passing: bool) -> Prepared:
    rows = any_in_state(Job.Status.PROCESSING, using=using).filter(lock_token=_TOKEN)
    changes = {
        "status": Job.Status.DONE,
        "result": ByKey("result"),
        "finished_at": UtcNow(),
        "updated_at": UtcNow(),
        **RELEASED,
    }
    if not passing:
        return prepare_change(rows, changes)
    with transaction.atomic(using=using):
        free = vendor(using).lock_rows(rows).values("pk")
        return prepare_change(Job.objects.using(using).filter(AnyOfArray(F("pk"), free)), changes)


@cache
def _free(using: str) -> Prepared:
    rows = any_in_state(Job.Status.PROCESSING, using=using).filter(lock_token=_TOKEN)
    with transaction.atomic(using=using):
        return prepare_rows(vendor(using).lock_rows(rows).values_list("pk"))


def _done_by(group: Sequence[Lease], using: str) -> dict[int, Any]:
    """When the jobs ended that are DONE by these leases: only a lease's holder writes DONE under its fence."""
    fences = {lease.job_id: lease.fence for lease in group}
    rows = Job.objects.using(using).filter(pk__in=list(fences), status=Job.Status.DONE)
    found = rows.values_list("pk", "fence", "finished_at")
    return {job_id: finished_at for job_id, fence, finished_at in found if fences[job_id] == fence}


def is_done_by(lease: Lease) -> bool:
    """Whether the job is DONE, and this lease's holder has done it."""
    return bool(retry_transient(lambda: _done_by([lease], lease.using), using=lease.using))


def _announce(leases: Sequence[Lease]) -> None:
    notify_ack_observer(leases)
    if job_done.receivers:
        for lease in leases:
            facts = {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task, "using": lease.using}
            send(job_done, Job, **facts, attempt=lease.attempt, worker=lease.worker)
