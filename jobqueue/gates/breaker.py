"""The circuit breaker of a dependency: a row of job_breaker, shared by all workers.

Closed: FAILURES failures with cause DEPENDENCY within WITHIN, and no success between, open it. Open: no job of the
dependency starts. After PROBE one job does, the probe: half-open. If it succeeds, the breaker closes; if it fails, it
is open again. (M. Nygard, Release It!, 2007, chapter 5.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

from django.db import OperationalError, connections
from django.db.models import Exists, OuterRef, Q

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import after_commit, send_after_commit
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, JobQueueError
from jobqueue.failures.dependencies import DependencySettings, settings_of
from jobqueue.gates.limits import breaker_subject
from jobqueue.gates.locking import PAUSES_SECONDS, tries, update_unlocked
from jobqueue.gates.rules import OpenBreaker, State, forget_rules, is_over, longest_wait, open_breaker
from jobqueue.models import BreakerState, Gate, Job
from jobqueue.signals import breaker_changed

logger = logging.getLogger("jobqueue.worker")

#: between the tries to lock the row of a breaker that others have locked
LOCKED_SECONDS = (*PAUSES_SECONDS, 0.08, 0.16, 0.32)
#: how long to wait for another transaction that is making the row; on MySQL and MariaDB it is a second
_MAKING_SECONDS = 0.3
Key = tuple[int, int]
#: the clocks of databases are at least so exact
CLOCK_SECONDS = 0.001


class BreakerOpen(JobQueueError):
    """A run that failed while the breaker of its dependency was open: its attempt is given back."""


def failed(
    dependency: str, calls: Sequence[Sequence[Run]], *, using: str, told_at: float | None = None
) -> Collection[Key]:
    """Record calls that have failed because of the dependency; the (job_id, fence) of the runs that use no attempt.

    A call has one run, or several of a batch. An outage uses up the attempts of the calls that open the breaker, and of
    runs that were running at that instant. The others, and the probe, get theirs back, whenever they are recorded.
    `told_at` (monotonic): the instant from which the runs count their seconds; None: now.
    """
    told_at = time.monotonic() if told_at is None else told_at
    found, changed = retry_transient("breaker", partial(_failed, dependency, calls, told_at, using), using=using)
    forget_rules()
    _announce(dependency, changed, using)
    return found


def _failed(
    dependency: str, calls: Sequence[Sequence[Run]], told_at: float, using: str
) -> tuple[set[Key], BreakerState | None]:
    own = settings_of(dependency, load().dependencies)
    with vendor(using).transaction(connections[using]):
        row = locked_row(dependency, using, waits=False)
        told = told_of(row, told_at)
        if row.state == State.CLOSED:
            spent = _count(row, calls, own, told)
            if spent is None:
                return set(), None
            others = [run for call in calls if call not in spent for run in call]
            return {run.key for run in others if not run.was_running(row.since, told)}, row
        runs = list(chain.from_iterable(calls))
        back = {run.key for run in runs if not run.was_running(row.since, told)}
        probe = row.probe_job, row.probe_fence
        if row.state != State.HALF_OPEN or probe not in {run.key for run in runs}:
            return back, None
        # Since the same instant: runs that began after it do not pay, also if they end after a probe has failed.
        probe_at = row.now + timedelta(seconds=own.probe)
        turn(row, State.OPEN, "the probe failed", since=row.since, probe_at=probe_at)
        return {*back, probe}, row


def _count(
    row: Any, calls: Sequence[Sequence[Run]], own: DependencySettings, told: Told
) -> Sequence[Sequence[Run]] | None:
    """Count failed calls while it is closed, in the order of their ends; those that counted if they have opened it."""
    now: datetime = row.now
    if row.window_at is None or (now - row.window_at).total_seconds() > own.within:
        row.window_at, row.failures = None, 0
    # Runs of before it was closed say nothing about the service now.
    fresh = [call for call in calls if call[0].began_after(row.since, told)]
    counted = sorted(fresh, key=lambda call: -call[0].ended_seconds)[: max(1, own.failures - row.failures)]
    row.failures += len(counted)
    if row.window_at is None and counted:
        row.window_at = told.earliest - timedelta(seconds=counted[0][0].ended_seconds)
    # `counted` is empty if all runs began before it was closed: a setting that was lowered alone opens nothing.
    if row.failures < own.failures or not counted:
        row.save(using=row._state.db)
        return None
    opened = told.earliest - timedelta(seconds=counted[-1][0].ended_seconds)
    probe_at = now + timedelta(seconds=own.probe)
    turn(row, State.OPEN, f"{row.failures} failures", since=opened, probe_at=probe_at)
    return counted


def succeeded(dependency: str, runs: Sequence[Run], *, using: str, told_at: float | None = None) -> None:
    """Record runs that have succeeded: no failures before them count, and a probe among them closes the breaker.

    Runs that ended before the first failure change nothing, however late they are recorded. `told_at`: as in failed().
    """
    told_at = time.monotonic() if told_at is None else told_at
    changed = retry_transient("breaker", partial(_succeeded, dependency, runs, told_at, using), using=using)
    forget_rules()
    _announce(dependency, changed, using)


def _succeeded(dependency: str, runs: Sequence[Run], told_at: float, using: str) -> BreakerState | None:
    with vendor(using).transaction(connections[using]):
        row = locked_row(dependency, using, waits=False)
        if row.state == State.CLOSED:
            told = told_of(row, told_at)
            if row.window_at is None or any(run.ended_after(row.window_at, told) for run in runs):
                row.failures, row.window_at = 0, None
                row.save(using=using)
            return None
        probe = row.probe_job, row.probe_fence
        if row.state != State.HALF_OPEN or probe not in [run.key for run in runs]:
            return None
        turn(row, State.CLOSED, "the probe succeeded")
        changed: BreakerState = row
        return changed


def may_probe(dependency: str, job_id: int, fence: int, *, using: str) -> bool:
    """Make the lease (job_id, fence), which begins in the open transaction, the probe of an open breaker.

    Not before its time, and not if another probe runs. One whose lease has ended otherwise, as by a crash, is followed
    by the next.
    """
    runs = Job.objects.filter(pk=OuterRef("probe_job"), fence=OuterRef("probe_fence"), status=Job.Status.PROCESSING)
    at = Q(probe_at__lte=UtcNow()) | Q(probe_at__gt=UtcNowPlus(longest_wait(dependency)))
    due = (at & Q(state=State.OPEN, by_hand=False)) | (Q(state=State.HALF_OPEN) & ~Exists(runs))
    rows = BreakerState.objects.using(using).filter(due, dependency=dependency)
    # Locked first: whoever has it locked turns the breaker just now, perhaps by a probe; nobody waits for that.
    own = BreakerState.objects.using(using).filter(pk=dependency)
    if not vendor(using).lock_rows(own).values_list("pk").first():
        return False
    # By key: MySQL refuses a subquery on a table that it updates, and this one reads another.
    return bool(
        rows.update(state=State.HALF_OPEN, probe_job=job_id, probe_fence=fence, updated_at=UtcNow(), probe_at=None)
    )


def those_not_closed(dependencies: Collection[str], using: str) -> Mapping[str | None, OpenBreaker]:
    """The breakers of these that are not closed, as they are now."""
    rows = BreakerState.objects.using(using).filter(pk__in=sorted(dependencies)).exclude(state=State.CLOSED)
    found = rows.annotate(now=Selected(UtcNow()))
    return {row.dependency: open_breaker(row, row.now) for row in found if not is_over(row, row.now)}


def breaker_of(dependency: str, using: str) -> OpenBreaker | None:
    """A breaker that is not closed, as it is now. One whose time by hand is over is closed first."""
    row = BreakerState.objects.using(using).filter(pk=dependency).annotate(now=Selected(UtcNow())).first()
    if row is None or row.state == State.CLOSED:
        return None
    if is_over(row, row.now):
        # If others keep it locked, it counts as closed all the same.
        with suppress(DatabaseBusy):
            if close(dependency, reason="its time is over", using=using, waits=False):
                announce(dependency, State.CLOSED, "its time is over", using)
        return None
    return open_breaker(row, row.now)


def probe_runs(breaker: OpenBreaker, using: str) -> bool:
    """Whether the job that is its probe runs."""
    if breaker.probe is None:
        return False
    job_id, fence = breaker.probe
    rows = Job.objects.using(using).filter(pk=job_id, fence=fence, status=Job.Status.PROCESSING)
    return bool(rows.values_list("pk")[:1])


def set_by_hand(dependency: str, *, reason: str, until: datetime | None, using: str) -> None:
    """Open it until then, in the caller's transaction; None: until close()."""
    retry_transient("breaker", partial(_open_by_hand, dependency, reason, until, using), using=using)


def _open_by_hand(dependency: str, reason: str, until: datetime | None, using: str) -> None:
    with vendor(using).transaction(connections[using]):
        row = locked_row(dependency, using)
        row.by_hand, row.until = True, until
        turn(row, State.OPEN, reason)


def close(dependency: str, *, reason: str, using: str, waits: bool = True) -> bool:
    """Close it, whoever has opened it, in the caller's transaction; False if it was closed.

    `waits`: see locked_row().
    """
    return retry_transient("breaker", partial(_close, dependency, reason, using, waits), using=using)


def _close(dependency: str, reason: str, using: str, waits: bool) -> bool:
    with vendor(using).transaction(connections[using]):
        row = locked_row(dependency, using, as_written=True, waits=waits)
        if row.state == State.CLOSED:
            return False
        turn(row, State.CLOSED, reason)
        return True


def turn(
    row: Any, state: State, reason: str, *, since: datetime | None = None, probe_at: datetime | None = None
) -> None:
    """Write a new state of a locked row, `since` now, and let the jobs that wait for it be looked at in time."""
    if state == State.CLOSED:
        row.by_hand, row.until = False, None
    row.state, row.reason, row.since = state, reason[:200], since or row.now
    row.failures, row.window_at, row.probe_at = 0, None, probe_at
    row.probe_job = row.probe_fence = None
    row.turn += 1
    row.updated_at = row.now
    using = row._state.db
    row.save(using=using)
    at = row.now if state == State.CLOSED else row.until if row.by_hand else probe_at
    gates = Gate.objects.using(using).filter(pk=breaker_subject(row.dependency).number)
    # A claim that has it locked puts jobs behind it, which are looked at within a second.
    update_unlocked(gates, using, opens_at=at, updated_at=UtcNow())


def locked_row(dependency: str, using: str, *, as_written: bool = False, waits: bool = True) -> Any:
    """The row of a dependency, locked. Made if there is none.

    Without `waits` DatabaseBusy is raised if others keep it locked: by threads that have more to do.
    `now` is the database's clock, and was read between the two instants (monotonic) of `read_between`. One that was
    opened by hand until a time that has passed is closed, unless `as_written`.
    """
    own = BreakerState.objects.using(using).filter(pk=dependency)
    rows = (own.select_for_update() if waits else vendor(using).lock_rows(own)).annotate(now=Selected(UtcNow()))
    for _ in tries(() if waits else LOCKED_SECONDS):
        before, row = time.monotonic(), cast(Any, rows.first())
        if row is None and not own.exists():
            _make(dependency, using, waits=waits)
            before, row = time.monotonic(), cast(Any, rows.first())
        if row is not None:
            break
    else:
        raise _busy(dependency)
    row.read_between = before, time.monotonic()
    # Instants ahead come from a clock that was set back: no failure would count before they have passed.
    row.since = None if row.since is not None and row.since > row.now else row.since
    row.window_at = None if row.window_at is not None and row.window_at > row.now else row.window_at
    if row.state != State.CLOSED and not as_written and is_over(row, row.now):
        row.state, row.by_hand, row.until, row.since = State.CLOSED, False, None, row.until
    return row


def _make(dependency: str, using: str, *, waits: bool) -> None:
    """Insert its row, unless another session does. Without `waits` that one is waited for a moment only."""
    locks = vendor(using).locks
    try:
        with nullcontext() if waits else locks.brief_transaction(connections[using], _MAKING_SECONDS):
            vendor(using).insert_missing(connections[using], [BreakerState(dependency=dependency)])
    except OperationalError as error:
        if waits or not locks.is_lock_timeout(error):
            raise
        raise _busy(dependency) from error


def _busy(dependency: str) -> DatabaseBusy:
    return DatabaseBusy(
        f"another session keeps the row of the circuit breaker of {dependency} locked. Nothing was written; look "
        "for a process that is frozen, or a transaction that does not end."
    )


def _announce(dependency: str, row: BreakerState | None, using: str) -> None:
    if row is None:
        return
    log = logger.info if row.state == State.CLOSED else logger.warning
    after_commit(partial(log, "the circuit breaker of %s is %s: %s", dependency, row.state, row.reason), using)
    announce(dependency, row.state, row.reason, using)


def announce(dependency: str, state: str, reason: str, using: str) -> None:
    """Send breaker_changed, after the commit of an open transaction."""
    about = {"dependency": dependency, "state": str(state), "reason": reason}
    send_after_commit(breaker_changed, BreakerState, using=using, **about)


class Run(NamedTuple):
    """A run that has ended, and how long ago it began and ended: it is recorded later, and was claimed earlier."""

    job_id: int
    fence: int
    began_seconds: float
    ended_seconds: float

    @property
    def key(self) -> Key:
        """The identity of this run: the job and its token."""
        return self.job_id, self.fence

    def began_after(self, instant: datetime | None, told: Told) -> bool:
        """Whether it began after this instant; None is before all runs."""
        return instant is None or told.earliest - timedelta(seconds=self.began_seconds) >= instant

    def ended_after(self, instant: datetime, told: Told) -> bool:
        """Whether it surely ended after this instant."""
        return told.earliest - timedelta(seconds=self.ended_seconds) > instant

    def was_running(self, instant: datetime | None, told: Told) -> bool:
        """Whether it surely ran at this instant: then a thread has one such run, however its runs are recorded."""
        if instant is None:
            return False
        began = told.latest - timedelta(seconds=self.began_seconds)
        return began < instant <= told.earliest - timedelta(seconds=self.ended_seconds)


class Told(NamedTuple):
    """When runs were recorded, by the database's clock: it was read later, between two looks at the process's clock."""

    earliest: datetime
    latest: datetime


def told_of(row: Any, told_at: float) -> Told:
    """The instant `told_at` by the database's clock: a wait for a lock, or for the processor, does not move it."""
    before, after = row.read_between
    exact = timedelta(seconds=CLOCK_SECONDS)
    return Told(
        row.now - timedelta(seconds=after - told_at) - exact, row.now - timedelta(seconds=before - told_at) + exact
    )
