"""One job run in this thread, in the transaction that a test case may have open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import DatabaseError, connections, transaction

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

    outcome: "ok"; "retry" = it failed and will run again; "dead" = it failed for the last time; "canceled"; "parked" =
    nobody here knows the task; "lost" = its lease had ended meanwhile. `name` is the task's path, or "handler".
    """

    job_id: int
    queue: str
    name: str
    attempt: int
    outcome: str
    error: BaseException | None = None

    def __str__(self) -> str:
        told = f": {type(self.error).__name__}: {self.error}" if self.error else ""
        return f"job {self.job_id} {self.name} attempt {self.attempt} {self.outcome}{told}"


@dataclass
class _Counters:
    """What settle() counts for a worker."""

    finished: int = 0
    failed: int = 0
    lost: int = 0


@cache
def discover_tasks() -> None:
    """Import <app>/tasks.py of every app, once, as a worker does when it starts."""
    list(registry.discover())


def run(lease: Lease) -> JobRun:
    """Run the job of `lease` here and now, and settle it as a worker does."""
    return settled(perform_here(lease))


def run_all(leases: Sequence[Lease]) -> Iterator[JobRun]:
    """Run the jobs of `leases`, all of one queue, by as many calls as a worker would."""
    for call in calls_of(leases)[0]:
        yield from [settled(outcome) for outcome in _performed(call)]


def perform_here(lease: Lease) -> Outcome:
    """Run it without settling. A KeyboardInterrupt is let out: it is more likely yours than the job's."""
    (outcome,) = _performed([lease])
    return outcome


def _performed(call: Sequence[Lease]) -> list[Outcome]:
    outcomes = perform(call, InlineRun(as_committed()))
    for outcome in outcomes:
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
    return outcomes


def settled(outcome: Outcome) -> JobRun:
    """Write how a run ended."""
    told: list[str] = []

    def hear(outcome: str, **_: Any) -> None:
        told.append(outcome)

    lease = outcome.lease
    attempt_ended.connect(hear)
    try:
        left = [outcome]
        for attempt in range(3):
            left = settle(left, _Counters(), again=attempt > 0)
            if not left:
                break
    finally:
        attempt_ended.disconnect(hear)
    if not told:
        raise DatabaseBusy(f"job {lease.job_id} ran, and its end could not be written; it is still PROCESSING.")
    return JobRun(lease.job_id, lease.queue, lease.task or "handler", lease.attempt, told[0], outcome.error)


@contextmanager
def as_committed() -> Iterator[None]:
    """Within a test case's transaction: what the block writes stays if it raises, and its on_commit calls are made.

    So it is in a worker, where a job's statements commit by themselves. What cannot be kept: a statement that failed
    on PostgreSQL makes the whole block undone.
    """
    inside = [c for c in connections.all(initialized_only=True) if c.in_atomic_block]
    with ExitStack() as blocks:
        for connection in inside:
            blocks.push(_kept(connection))
        yield


def _kept(connection: Any) -> Any:
    """Begin a savepoint that no error undoes; what ends it."""
    block = transaction.atomic(using=connection.alias)
    # As a test case's own: it does not count as the job's transaction.
    block._from_testcase = True
    block.__enter__()
    earlier = len(connection.run_on_commit)

    def end(*_: Any) -> bool:
        try:
            block.__exit__(None, None, None)
        except DatabaseError:
            # The server had refused a statement, so the savepoint was rolled back.
            return False
        run_hooks(connection, earlier)
        return False

    return end


def run_hooks(connection: Any, earlier: int) -> None:
    """Make the calls that were registered with on_commit after the first `earlier` ones."""
    while len(connection.run_on_commit) > earlier:
        _, call, _ = connection.run_on_commit.pop(earlier)
        call()
