"""Write how runs ended: acks together, everything else one by one. Outcomes that cannot be written are returned."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from django.db import DatabaseError, Error, connections

from jobqueue import transitions
from jobqueue.base.durations import format_seconds
from jobqueue.db import is_refusal, vendor
from jobqueue.exceptions import DatabaseBusy, JobLost, LeaseLost, LockNotAcquired, ResultError
from jobqueue.failures import dotted_path, is_permanent, summary
from jobqueue.gates.breaker import BreakerOpen
from jobqueue.models import Job
from jobqueue.requested import BY_OUTCOME, REQUESTED_ENDS, Requested
from jobqueue.signals import RunOutcome, attempt_ended, send
from jobqueue.stats import recorder
from jobqueue.transitions import Lease
from jobqueue.transitions.acking import is_done_by
from jobqueue.transitions.failing import give_up
from jobqueue.transitions.leases import is_locked, touch
from jobqueue.transitions.releasing import end_as_requested
from jobqueue.worker.child.sifting import snooze_seconds
from jobqueue.worker.run import task_signals
from jobqueue.worker.run.attempt import Ending, Outcome

logger = logging.getLogger("jobqueue.worker")

# An outcome is given up if its connection was lost this often, while small writes to the same row succeeded.
ALONE_TRIES = 3
ALONE_SECONDS = 0.2
_CUT_OFF = (
    "the connection is lost whenever it is sent, and the database answers otherwise. Something between, as a proxy, "
    "may not take a statement that long"
)
#: outcomes after which the job runs again later
DELAYED = (RunOutcome.RETRY, RunOutcome.PARKED, *(end.outcome for end in REQUESTED_ENDS if end.again))
# Before a job asks again for a lock that was not free.
LOCKED_SECONDS = 5.0
#: status of the job after a failed run -> outcome that attempt_ended reports
AFTER_FAILURE = {
    Job.Status.READY: RunOutcome.RETRY,
    Job.Status.CANCELED: RunOutcome.CANCELED,
    Job.Status.FAILED: RunOutcome.DEAD,
}
#: log a job that has not got its lock for this long, and again each time as much time has passed
ALARM_SECONDS = 600.0
_KEPT_MAX = 10_000
_counting, _noting = threading.Lock(), threading.Lock()
#: by database and job that did not get its lock: when it was first put back, was last logged, and was last seen
_without_lock: dict[tuple[str, int], list[float]] = {}


class Counts(Protocol):
    """Where runs are counted: a ProcessSlot, or the counters of a test. Those of REQUESTED_ENDS are there too."""

    finished: int
    failed: int
    lost: int


def settle(outcomes: Sequence[Outcome], counts: Counts, *, again: bool = False) -> list[Outcome]:
    """Write the outcomes; returns those that could not be written now, to be tried `again` later.

    An outcome whose row another session has locked is marked as `row_locked`; the others are returned because the
    database is unreachable, and have the error as `problem`. An outcome that was alone is marked as `cut_off` if its
    connection was lost.
    """
    for outcome in outcomes:
        outcome.row_locked, outcome.cut_off, outcome.problem = False, False, None
    good = [outcome for outcome in outcomes if outcome.ending is Ending.OK and not outcome.finishing]
    unwritten: list[Outcome] = []
    try:
        if good:
            leases, results, locked = [one.lease for one in good], [one.result for one in good], list[Lease]()
            gone = transitions.ack_many(leases, results=results, again=again, locked=locked)
            unwritten = _acked(good, gone, locked, counts)
    except DatabaseBusy as error:
        good[0].problem = error
        return list(outcomes)
    except Exception as error:
        if isinstance(error, Error) and _is_outage(error, good[0]):
            if not (long := _too_long(good)):
                return list(outcomes)
            return _settle_too_long(long, outcomes, error, counts)
        # One of them causes the error. One by one, it is found and the others are written.
        for outcome in good if len(good) > 1 else ():
            unwritten += settle([outcome], counts, again=True)
        if len(good) == 1 and not _settle_plain(good[0], error, counts):
            unwritten += good
    rest = [outcome for outcome in outcomes if outcome.ending is not Ending.OK or outcome.finishing]
    return unwritten + [outcome for outcome in rest if not _settle_one(outcome, counts, again)]


def settle_alone(outcome: Outcome, counts: Counts) -> list[Outcome]:
    """Write an outcome for which the database was unreachable; returns it if it could not be written.

    If the connection is lost each time it is sent, while the database answers small writes, the outcome is given up.
    """
    for _ in range(ALONE_TRIES):
        if not _takes_small_writes(outcome):
            return [outcome]
        if not settle([outcome], counts, again=True):
            return []
        if not outcome.cut_off or not outcome.sent_chars:
            return [outcome]
        time.sleep(random.uniform(0.5, 1.0) * ALONE_SECONDS)
    if _takes_small_writes(outcome) and _settle_plain(outcome, ResultError(_CUT_OFF), counts):
        return []
    return [outcome]


def _takes_small_writes(outcome: Outcome) -> bool:
    """Whether a small write to the job's row succeeds. False, too, while another session has locked the row."""
    try:
        outcome.row_locked = is_locked(outcome.lease)
        if not outcome.row_locked:
            touch(outcome.lease)
    except (Error, DatabaseBusy) as error:
        outcome.problem = error
        return False
    return not outcome.row_locked


def _too_long(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes whose result exceeds what the server accepts: it closes the connection. [] if it is unreachable."""
    using = outcomes[0].lease.using
    try:
        dialect = vendor(using)
        limit = dialect.max_statement_bytes(connections[using])
    except Error:
        return []
    if limit is None:
        return []
    return [outcome for outcome in outcomes if outcome.result and dialect.statement_bytes(outcome.result) >= limit]


def _settle_too_long(
    long: Sequence[Outcome], outcomes: Sequence[Outcome], problem: Exception, counts: Counts
) -> list[Outcome]:
    unwritten = [outcome for outcome in long if not _settle_plain(outcome, problem, counts)]
    return unwritten + settle([outcome for outcome in outcomes if outcome not in long], counts, again=True)


def _acked(
    outcomes: Sequence[Outcome], gone: Iterable[Lease], locked: Iterable[Lease], counts: Counts
) -> list[Outcome]:
    """Count and announce what ack_many() wrote; returns the outcomes whose rows are locked."""
    lost, passed = ({(lease.job_id, lease.fence) for lease in leases} for leases in (gone, locked))
    for outcome in outcomes:
        outcome.row_locked = outcome.key in passed
    written = [outcome for outcome in outcomes if not outcome.row_locked]
    with _counting:
        counts.finished += len(written)
        counts.lost += len(lost)
    for outcome in written:
        _announce(outcome, RunOutcome.LOST if outcome.key in lost else RunOutcome.OK)
    return [outcome for outcome in outcomes if outcome.row_locked]


def _settle_one(outcome: Outcome, counts: Counts, again: bool) -> bool:
    """Write one outcome; returns whether it is written, or given up."""
    try:
        if outcome.ending is not Ending.FINISHED and is_locked(outcome.lease):
            outcome.row_locked = True
            return False
        _count_and_announce(outcome, _write(outcome, again), counts)
    except LeaseLost:
        _count_and_announce(outcome, RunOutcome.LOST, counts)
    except DatabaseError as error:
        if _is_outage(error, outcome):
            return False
        return _settle_plain(outcome, error, counts)
    except (Error, DatabaseBusy) as error:
        outcome.problem = error
        return False
    except Exception as error:  # the error of the job cannot be described; the others must still be written
        return _settle_plain(outcome, error, counts)
    return True


def _write(outcome: Outcome, again: bool) -> RunOutcome:
    """Write it; returns the outcome that attempt_ended reports. Raises LeaseLost."""
    if not outcome.finishing:
        return _write_ending(outcome, again)
    # The answer to the commit of its finish() was lost, or something after it raised, as on_commit() hooks may.
    if is_done_by(outcome.lease):
        outcome.was_finished()
        return RunOutcome.OK
    try:
        return _write_ending(outcome, again)
    except LeaseLost:
        # The server may have committed it only now.
        if not is_done_by(outcome.lease):
            raise
        outcome.was_finished()
        return RunOutcome.OK


def _settle_plain(outcome: Outcome, problem: Exception, counts: Counts) -> bool:
    """Write the end with a text that the database accepts: it refused the outcome itself."""
    logger.error("job %d: its outcome could not be stored: %s", outcome.lease.job_id, summary(problem))
    try:
        _count_and_announce(outcome, _write_refused(outcome, problem), counts)
    except LeaseLost:
        _count_and_announce(outcome, RunOutcome.LOST, counts)
    except DatabaseBusy as error:
        outcome.problem = error
        return False
    except Exception as again:
        if isinstance(again, Error) and _is_outage(again, outcome):
            return False
        logger.exception("job %d: giving up; its lease will expire and be reaped", outcome.lease.job_id)
    return True


def _write_refused(outcome: Outcome, problem: Exception) -> RunOutcome:
    """With what the policy of its task adds, or without it if that is what was refused."""
    try:
        return _write_plain(outcome, problem)
    except Error as error:
        if outcome.also is None or _is_outage(error, outcome):
            raise
        outcome.also = None
        return _write_plain(outcome, problem)


def _is_outage(error: Error, outcome: Outcome) -> bool:
    outcome.cut_off = not is_refusal(error, outcome.lease.using)
    outcome.problem = error if outcome.cut_off else None
    return outcome.cut_off


def _count_and_announce(outcome: Outcome, what: RunOutcome, counts: Counts) -> None:
    with _counting:
        counts.finished += 1
        counts.failed += what in (RunOutcome.RETRY, RunOutcome.DEAD)
        counts.lost += what is RunOutcome.LOST
        if (end := BY_OUTCOME.get(what)) is not None:
            end.count_in(counts)
    _announce(outcome, what)


def _announce(outcome: Outcome, what: RunOutcome) -> None:
    """Tell what is written. An error here is only logged: the end must not be written again for it."""
    lease = outcome.lease
    try:
        if what is not RunOutcome.PARKED:
            _got_lock(lease.using, lease.job_id)
            if what is not RunOutcome.LOST:
                recorder.count_run(lease, outcome.run_seconds)
        task_signals.finished(outcome, what)
        if attempt_ended.receivers:
            send(
                attempt_ended,
                Job,
                outcome=what,
                job_id=lease.job_id,
                queue=lease.queue,
                name=lease.task or "handler",
                attempt=lease.attempt,
                max_attempts=lease.max_attempts,
                wait_seconds=max(0.0, (lease.locked_at - lease.run_at).total_seconds()),
                run_seconds=outcome.run_seconds,
                error=outcome.error,
                delay_seconds=outcome.delay_seconds if what in DELAYED else None,
            )
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit of a receiver too
        logger.exception("job %d has ended, but that could not be announced", lease.job_id)


def _write_ending(outcome: Outcome, again: bool) -> RunOutcome:
    """Write it with one verb; returns the outcome that attempt_ended reports. Raises LeaseLost."""
    lease, error = outcome.lease, outcome.error
    if outcome.ending is Ending.FINISHED:
        return outcome.settled
    if outcome.ending is Ending.OK:
        transitions.ack(lease, result=outcome.result)
        return RunOutcome.OK
    if outcome.ending is Ending.REQUESTED and outcome.requested is not None:
        return _write_requested(outcome, outcome.requested, log=outcome.log, again=again)
    if outcome.ending is Ending.PARKED:
        return _park(outcome, again)
    if outcome.ending is Ending.GIVEN_UP:
        return AFTER_FAILURE[give_up(lease, again=again)]
    if outcome.ending is Ending.CANCELED:
        transitions.cancel_held(lease, again=again)
        return RunOutcome.CANCELED
    assert error is not None
    if outcome.delay_seconds is None and not issubclass(type(error), JobLost):
        # Chosen here, and not by fail(), so that the log line can say when the job runs again.
        outcome.chosen_delay()
    status = transitions.fail(
        lease,
        error=error,
        delay_seconds=outcome.delay_seconds,
        retry=outcome.retry,
        log=outcome.log,
        also=outcome.also,
        again=again,
    )
    return AFTER_FAILURE[status]


def _write_plain(outcome: Outcome, problem: Exception) -> RunOutcome:
    """Write the end of a run whose own texts the database refused for `problem`. Raises LeaseLost.

    An end that the job requested remains that. Anything else becomes a failed attempt that says what happened.
    """
    lease, own = outcome.lease, outcome.error
    why = str(problem) if isinstance(problem, ResultError) else type(problem).__name__
    words = f"the outcome could not be stored: {why}"
    if outcome.ending is Ending.REQUESTED and (requested := outcome.requested) is not None:
        plain = requested._replace(text=words, error_class=dotted_path(requested.end.error))
        return _write_requested(outcome, plain, log=None, again=True)
    error: ResultError | str = ResultError(words) if outcome.ending is Ending.OK else words
    retry = outcome.retry and not (own is not None and is_permanent(own))
    status = transitions.fail(
        lease, error=error, delay_seconds=outcome.delay_seconds, retry=retry, also=outcome.also, again=True
    )
    return AFTER_FAILURE[status]


def _write_requested(outcome: Outcome, requested: Requested, *, log: str | None, again: bool) -> RunOutcome:
    status = end_as_requested(outcome.lease, requested, log=log, also=outcome.also, again=again)
    # A job that was asked to cancel does not wait for another run.
    canceled = requested.end.again and status is Job.Status.CANCELED
    return RunOutcome.CANCELED if canceled else requested.end.outcome


def _park(outcome: Outcome, again: bool) -> RunOutcome:
    lease, error = outcome.lease, outcome.error
    if type(error) is BreakerOpen:
        # It keeps its place: the next claim puts it behind the gate of the breaker.
        return RunOutcome.CANCELED if transitions.release(lease) is Job.Status.CANCELED else RunOutcome.PARKED
    if isinstance(error, LockNotAcquired):
        seconds = LOCKED_SECONDS
        _warn_without_lock(lease.using, lease.job_id, error)
    else:
        seconds = snooze_seconds(lease)
    outcome.delay_seconds = seconds * random.uniform(0.8, 1.2)
    status = transitions.snooze(lease, delay_seconds=outcome.delay_seconds, reason=str(error), again=again)
    return RunOutcome.CANCELED if status is Job.Status.CANCELED else RunOutcome.PARKED


def _warn_without_lock(using: str, job_id: int, error: BaseException) -> None:
    """Log a job that did not get its lock, if this process has put it back for ALARM_SECONDS."""
    now = time.monotonic()
    with _noting:
        times = _without_lock.get((using, job_id))
        # It was not seen for long: it has run meanwhile, or other workers had it.
        if times is None or now - times[2] > ALARM_SECONDS:
            if len(_without_lock) >= _KEPT_MAX:
                _without_lock.clear()
            _without_lock[using, job_id] = [now, now, now]
            return
        times[2] = now
        if now - times[1] < ALARM_SECONDS:
            return
        times[1], waited = now, now - times[0]
    logger.warning(
        "job %d has not got its lock for %s: %s It is put back every few seconds, without using an attempt. See who "
        "holds the lock with `jobs locks`, cancel the job, or give such jobs expires_at",
        job_id,
        format_seconds(waited),
        error,
    )


def _got_lock(using: str, job_id: int) -> None:
    """Forget a job that has got its lock or has ended."""
    if _without_lock:
        with _noting:
            _without_lock.pop((using, job_id), None)
