"""PROCESSING -> DONE, and when the DONE jobs of tasks with a result_ttl_seconds are to be deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial

from django.db import Error, connections, transaction
from django.db.models import F

from jobqueue.base.payload import JSON, encode
from jobqueue.base.validation import check_list
from jobqueue.conf import load
from jobqueue.conf.known_tasks import having
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.expressions import AnyOfArray, ByKey, Slot
from jobqueue.db.fields import LONG_AGO, Encoded, TokenField
from jobqueue.db.prepared import Prepared, in_chunks, prepare_change, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InvalidValue, PayloadError, ResultError, SoftTimeout
from jobqueue.failures import summary
from jobqueue.models import Job, ResultExpiry
from jobqueue.models.rows import any_in_state, in_state
from jobqueue.signals import job_done
from jobqueue.transitions.leases import RELEASED, Lease, by_token, can_skip_locked, check_lease, check_leases
from jobqueue.transitions.verb import Portion, Signals, Written, run_verb

logger = logging.getLogger("jobqueue.transitions")

_TOKEN = Slot("token", TokenField())
_SIGNALS: Signals = {Job.Status.DONE: [(job_done, {})]}
# Escaped and in four bytes a character this is below the smallest default max_allowed_packet (MariaDB, 16 MB).
_STATEMENT_CHARS = 2_000_000


def ack(lease: Lease, *, result: JSON = None) -> None:
    """Record success with `result` (JSON; None is stored as NULL) and end the lease. One statement.

    Raises LeaseLost when another holder took over; nothing was written. A lease that ran out but was not reaped may
    still ack. Raises ResultError for a result that cannot be stored: nothing was written, the lease is still held.
    """
    check_lease(lease)
    portion = _portion([lease], {lease.job_id: encode_result(result)}, skip_locked=False)
    run_verb("ack", [portion], _SIGNALS).status()
    note_expiries([lease])


def ack_many(
    leases: Iterable[Lease],
    *,
    results: Iterable[JSON] | None = None,
    again: bool = False,
    locked: list[Lease] | None = None,
) -> list[Lease]:
    """ack() for each lease with its result, one statement per token; returns those that were lost.

    `locked`: leases whose rows another transaction has locked are appended to this list; they are neither acked nor
    lost, and their locks are not waited for. Without it, and inside an open transaction, they are waited for.

    `again`: an earlier call with these leases ended in an error and may have been committed all the same; jobs that are
    DONE by these leases then count as acked. Raises InvalidValue unless there is a result for each lease, and
    ResultError as ack() does: nothing was written.
    """
    leases = check_leases(leases)
    if results is not None:
        check_list(results, "results", Iterable)
    values = [None] * len(leases) if results is None else list(results)
    if len(values) != len(leases):
        raise InvalidValue(f"ack_many() got {len(leases)} leases and {len(values)} results. Nothing was written.")
    encoded = {(lease.job_id, lease.fence): encode_result(result) for lease, result in zip(leases, values, strict=True)}
    # The results of a chunk fit into one statement, whatever the server's limit of a packet.
    sized = partial(in_chunks, size=lambda lease: len(encoded[lease.job_id, lease.fence] or ""))
    portions = [
        _portion(chunk, {lease.job_id: encoded[lease.job_id, lease.fence] for lease in chunk}, locked is not None)
        for group in by_token(leases).values()
        for chunk in sized(group, size_max=_STATEMENT_CHARS)
    ]
    settled = run_verb("ack", portions, _SIGNALS, again=again)
    note_expiries(settled.written.get(Job.Status.DONE, ()))
    if locked is not None:
        locked += [job for job in settled.written.get(Job.Status.PROCESSING, ()) if isinstance(job, Lease)]
    return settled.lost


def encode_result(result: JSON) -> Encoded | None:
    """`result` as stored text; None stays None. Raises ResultError for what cannot be stored."""
    if result is None or isinstance(result, Encoded):
        return result
    try:
        limit = load().max_result_bytes
        return Encoded(encode(result, max_bytes=limit, setting="MAX_RESULT_BYTES", what="result"))
    except PayloadError as error:
        # The function has run.
        raise ResultError(str(error).replace("Nothing was written", "No result was stored")) from None
    except SoftTimeout:
        raise
    except Exception as error:
        # A class of the user's own, or a dict that another thread is changing.
        raise ResultError(f"result cannot be read ({summary(error)}). No result was stored.") from error


def _portion(leases: Sequence[Lease], texts: Mapping[int, Encoded | None], skip_locked: bool) -> Portion:
    """An ack of leases that share a token, with the result of each job id."""
    using = leases[0].using
    results = {job_id: text for job_id, text in texts.items() if text is not None}
    return Portion(using, partial(_write, leases, results, skip_locked and can_skip_locked(using)), leases)


def _write(leases: Sequence[Lease], results: Mapping[int, Encoded], skip_locked: bool, tries: int) -> Written:
    """One UPDATE; with `skip_locked` rows that another transaction has locked are left out."""
    using, token = leases[0].using, leases[0].token
    ids = [lease.job_id for lease in leases]
    in_one = skip_locked and vendor(using).has_update_returning
    if skip_locked and not in_one:
        # A statement of its own, whose locks end with it: a transaction would cost four more round trips.
        free = {job_id for (job_id,) in _free(using).rows(ids=ids, token=token)}
        ids = [job_id for job_id in ids if job_id in free]
        results = {job_id: text for job_id, text in results.items() if job_id in free}
    count = _done(using, in_one).change(ids=ids, token=token, result=results) if ids else 0
    if count == len(leases):
        return {Job.Status.DONE: leases}
    return _look_again(leases, count, skip_locked, tries)


def _look_again(leases: Sequence[Lease], count: int, skip_locked: bool, tries: int) -> Written:
    """Which `leases` were acked by an UPDATE of `count` rows, which are still held behind a locked row."""
    using, token = leases[0].using, leases[0].token
    ended = retry_transient("ack", lambda: _done_by(leases, using), using=using)
    if tries == 1 and len(ended) > count:
        # Some were acked by an earlier call. One statement gives all its rows the same finished_at.
        latest = max(ended.values()) if count else None
        ended = {job_id: finished_at for job_id, finished_at in ended.items() if finished_at == latest}
    done = [lease for lease in leases if lease.job_id in ended]
    rest = [lease for lease in leases if lease.job_id not in ended]
    if not skip_locked or not rest:
        return {Job.Status.DONE: done}
    # A row that was skipped is still held. (If it was lost meanwhile, the next try finds that out.)
    mine = in_state((lease.job_id for lease in rest), Job.Status.PROCESSING, using=using).filter(lock_token=token)
    waiting: set[int] = retry_transient("ack", lambda: set(mine.values_list("pk", flat=True)), using=using)
    return {Job.Status.DONE: done, Job.Status.PROCESSING: [lease for lease in rest if lease.job_id in waiting]}


@cache
def _done(using: str, skip_locked: bool) -> Prepared:
    rows = any_in_state(Job.Status.PROCESSING, using=using).filter(lock_token=_TOKEN)
    changes = {
        "status": Job.Status.DONE,
        "result": ByKey("result"),
        "finished_at": UtcNow(),
        "updated_at": UtcNow(),
        **RELEASED,
    }
    if not skip_locked:
        return prepare_change(rows, changes)
    with transaction.atomic(using=using):
        free = vendor(using).lock_rows(rows).values("pk")
        return prepare_change(Job.objects.using(using).filter(AnyOfArray(F("pk"), free)), changes)


@cache
def _free(using: str) -> Prepared:
    rows = any_in_state(Job.Status.PROCESSING, using=using).filter(lock_token=_TOKEN)
    with transaction.atomic(using=using):
        return prepare_rows(vendor(using).lock_rows(rows).values_list("pk"))


def _done_by(leases: Sequence[Lease], using: str) -> dict[int, datetime]:
    """When the jobs ended that are DONE by these leases: only a lease's holder writes DONE under its fence."""
    fences = {lease.job_id: lease.fence for lease in leases}
    rows = Job.objects.using(using).filter(pk__in=list(fences), status=Job.Status.DONE)
    found = rows.values_list("pk", "fence", "finished_at")
    return {job_id: finished_at or LONG_AGO for job_id, fence, finished_at in found if fences[job_id] == fence}


def is_done_by(lease: Lease) -> bool:
    """Whether the job is DONE, and the holder of this lease wrote it."""
    return bool(retry_transient("ack", lambda: _done_by([lease], lease.using), using=lease.using))


def note_expiries(done: Iterable[object]) -> None:
    """Write the expiries of jobs that were acked. No statement if none has one.

    After the commit of the ack, so that an ack stays one statement: a crash in between leaves a job to RETENTION. In a
    caller's transaction, together with the ack.
    """
    by_database: dict[str, dict[int, float]] = {}
    of_tasks = having("result_ttl_seconds")
    if not of_tasks:
        done = [job for job in done if isinstance(job, Lease) and job.options]
    for lease in done:
        if isinstance(lease, Lease) and (ttl := _ttl(lease, of_tasks)) is not None:
            by_database.setdefault(lease.using, {})[lease.job_id] = ttl
    for using, ttls in by_database.items():
        try:
            retry_transient("ack", partial(_write_expiries, ttls, using), using=using)
        except (Error, DatabaseBusy) as error:
            connection = connections[using]
            if in_callers_transaction(connection) and (connection.needs_rollback or not connection.is_usable()):
                # The ack is lost too.
                raise
            text = "%d jobs are DONE; their result_ttl_seconds could not be noted, so RETENTION decides: %s"
            logger.warning(text, len(ttls), error)


def _ttl(lease: Lease, of_tasks: Mapping[str, float]) -> float | None:
    """How long the job is kept: what using() gave it, else what its task says, if either does."""
    own = lease.options.get("result_ttl_seconds") if isinstance(lease.options, dict) else None
    if isinstance(own, (int, float)):
        return float(own)
    return None if lease.task is None else of_tasks.get(lease.task)


def _write_expiries(ttls: dict[int, float], using: str) -> None:
    rows = [ResultExpiry(job_id=job_id, ttl_seconds=ttl, expires_at=UtcNowPlus(ttl)) for job_id, ttl in ttls.items()]
    with vendor(using).transaction(connections[using]):
        vendor(using).insert_missing(connections[using], rows)
