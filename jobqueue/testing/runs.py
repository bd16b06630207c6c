"""Run one job in this thread, also inside the transaction of a test case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.exceptions import DatabaseBusy
from jobqueue.signals import attempt_ended
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.attempt import Outcome
from jobqueue.worker.run.batch import calls_of
from jobqueue.worker.run.perform import InlineRun, perform


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job, and how it ended.

    outcome: "ok"; "retry" = it failed and will run again; "dead" = it failed and no attempt is left; "canceled";
    "snoozed" and "discarded" = the job raised Snooze or Discard; "parked" = this process knows no such task; "lost" =
    its lease ended during the run. `name` is the task's path, or "handler".
    """

    job_id: int
    queue: str
    name: str
    attempt: int
    outcome: str
    error: BaseException | None = None

    def __str__(self) -> str:
        detail = f": {type(self.error).__name__}: {self.error}" if self.error else ""
        return f"job {self.job_id} {self.name} attempt {self.attempt} {self.outcome}{detail}"


@dataclass
class _Counters:
    """The counts that settle() adds to."""

    finished: int = 0
    failed: int = 0
    lost: int = 0
    snoozed: int = 0
    discarded: int = 0


@cache
def discover_tasks() -> None:
    """Import <app>/tasks.py of every app, once, as a worker does when it starts."""
    list(registry.discover())


def run(lease: Lease) -> JobRun:
    """Run the job of `lease` in this thread, and settle it as a worker does."""
    return settled(perform_here(lease))


def run_all(leases: Sequence[Lease]) -> Iterator[JobRun]:
    """Run the jobs of `leases`, all of one queue, with as many calls as a worker would make."""
    for call in calls_of(leases)[0]:
        yield from [settled(outcome) for outcome in _performed(call)]


def perform_here(lease: Lease) -> Outcome:
    """Run the job without settling it. Re-raises KeyboardInterrupt, which most likely comes from you, not the job."""
    (outcome,) = _performed([lease])
    return outcome


def _performed(call: Sequence[Lease]) -> list[Outcome]:
    outcomes = perform(call, InlineRun(as_committed()))
    for outcome in outcomes:
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
    return outcomes


def settled(outcome: Outcome) -> JobRun:
    """Settle a run. Raises DatabaseBusy if its end cannot be written."""
    outcomes: list[str] = []

    def note_outcome(outcome: str, **_: object) -> None:
        outcomes.append(outcome)

    lease = outcome.lease
    attempt_ended.connect(note_outcome)
    try:
        left = [outcome]
        for attempt in range(3):
            left = settle(left, _Counters(), again=attempt > 0)
            if not left:
                break
    finally:
        attempt_ended.disconnect(note_outcome)
    if not outcomes:
        raise DatabaseBusy(f"job {lease.job_id} ran, but its end could not be written; it is still PROCESSING.")
    return JobRun(lease.job_id, lease.queue, lease.task or "handler", lease.attempt, outcomes[0], outcome.error)


@contextmanager
def as_committed() -> Iterator[None]:
    """In a test case's transaction: keep what the block writes, also if it raises, and make its on_commit calls.

    This is what happens in a worker, where each statement of a job commits by itself. One difference remains: on
    PostgreSQL a statement that fails undoes the whole block.
    """
    inside = [c for c in connections.all(initialized_only=True) if c.in_atomic_block]
    with ExitStack() as blocks:
        for connection in inside:
            blocks.push(_kept(connection))
        yield


def _kept(connection: BaseDatabaseWrapper) -> Callable[..., bool]:
    """Begin a savepoint that an exception does not roll back. Returns the exit function for an ExitStack."""
    block = transaction.atomic(using=connection.alias)
    # Marked like the transaction of a test case, so that it does not count as a transaction of the job.
    block._from_testcase = True  # type: ignore[attr-defined]
    block.__enter__()
    earlier = len(connection.run_on_commit)

    def end(*_: object) -> bool:
        try:
            block.__exit__(None, None, None)
        except DatabaseError:
            # A statement had failed on the server, so the savepoint was rolled back.
            return False
        run_hooks(connection, earlier)
        return False

    return end


def run_hooks(connection: BaseDatabaseWrapper, earlier: int) -> None:
    """Make the on_commit calls after the first `earlier` ones."""
    while len(connection.run_on_commit) > earlier:
        call = connection.run_on_commit.pop(earlier)[1]
        call()
