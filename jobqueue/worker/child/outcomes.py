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
from jobqueue.db import is_refusal, vendor
from jobqueue.exceptions import DatabaseBusy, LeaseLost, ResultError
from jobqueue.failures import summary
from jobqueue.models import Job
from jobqueue.signals import RunOutcome, attempt_ended, send
from jobqueue.stats import recorder
from jobqueue.transitions import Lease
from jobqueue.transitions.acking import is_done_by
from jobqueue.transitions.leases import is_locked, touch
from jobqueue.worker.child import parked
from jobqueue.worker.child.endings import write_ending, write_plain
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
DELAYED = (RunOutcome.RETRY, RunOutcome.SNOOZED, RunOutcome.PARKED)
_counting = threading.Lock()


class Counts(Protocol):
    """Where runs are counted: a ProcessSlot, or the counters of a test."""

    finished: int
    failed: int
    lost: int
    snoozed: int
    discarded: int


def settle(outcomes: Sequence[Outcome], counts: Counts, *, again: bool = False) -> list[Outcome]:
    """Write the outcomes; returns those that could not be written now, to be tried `again` later.

    An outcome whose row another session has locked is marked as `row_locked`; the others are returned because the
    database is unreachable. An outcome that was alone is marked as `cut_off` if its connection was lost.
    """
    for outcome in outcomes:
        outcome.row_locked = outcome.cut_off = False
    good = [outcome for outcome in outcomes if outcome.ending is Ending.OK and not outcome.finishing]
    unwritten: list[Outcome] = []
    try:
        if good:
            leases, results, locked = [one.lease for one in good], [one.result for one in good], list[Lease]()
            gone = transitions.ack_many(leases, results=results, again=again, locked=locked)
            unwritten = _acked(good, gone, locked, counts)
    except DatabaseBusy:
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
    except (Error, DatabaseBusy):
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
    _count(counts, len(written), lost=len(lost))
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
    except DatabaseBusy:
        return False
    except DatabaseError as error:
        if _is_outage(error, outcome):
            return False
        return _settle_plain(outcome, error, counts)
    except Error:
        return False
    except Exception as error:  # the error of the job cannot be described; the others must still be written
        return _settle_plain(outcome, error, counts)
    return True


def _write(outcome: Outcome, again: bool) -> RunOutcome:
    """Write it; returns the outcome that attempt_ended reports. Raises LeaseLost."""
    if not outcome.finishing:
        return write_ending(outcome, again)
    # The answer to the commit of its finish() was lost, or something after it raised, as on_commit() hooks may.
    if is_done_by(outcome.lease):
        outcome.was_finished()
        return RunOutcome.OK
    try:
        return write_ending(outcome, again)
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
    except DatabaseBusy:
        return False
    except Error as again:
        if _is_outage(again, outcome):
            return False
        logger.exception("job %d: giving up; its lease will expire and be reaped", outcome.lease.job_id)
    return True


def _write_refused(outcome: Outcome, problem: Exception) -> RunOutcome:
    """With what the policy of its task adds, or without it if that is what was refused."""
    try:
        return write_plain(outcome, problem)
    except Error as error:
        if outcome.also is None or _is_outage(error, outcome):
            raise
        outcome.also = None
        return write_plain(outcome, problem)


def _is_outage(error: Error, outcome: Outcome) -> bool:
    outcome.cut_off = not is_refusal(error, outcome.lease.using)
    return outcome.cut_off


def _count_and_announce(outcome: Outcome, what: RunOutcome, counts: Counts) -> None:
    _count(counts, 1, failed=what in (RunOutcome.RETRY, RunOutcome.DEAD), lost=what is RunOutcome.LOST)
    if what in (RunOutcome.SNOOZED, RunOutcome.DISCARDED):
        _count_requests(counts, what)
    _announce(outcome, what)


def _count(counts: Counts, finished: int, *, failed: int = 0, lost: int = 0) -> None:
    with _counting:
        counts.finished += finished
        counts.failed += failed
        counts.lost += lost


def _count_requests(counts: Counts, what: RunOutcome) -> None:
    with _counting:
        if what is RunOutcome.SNOOZED:
            counts.snoozed += 1
        else:
            counts.discarded += 1


def _announce(outcome: Outcome, what: RunOutcome) -> None:
    lease = outcome.lease
    if what is not RunOutcome.PARKED:
        parked.ran(lease.using, lease.job_id)
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
