"""Run jobs in the thread of a test, as a worker would, also inside the transaction of a test case."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from jobqueue.base.compat import AnyTask, Task
from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_id, check_instant, check_int
from jobqueue.conf import load
from jobqueue.conf.task_spec import spec_of
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue
from jobqueue.models import Job
from jobqueue.producer.enqueueing import new_job, with_context
from jobqueue.producer.insert import insertion
from jobqueue.signals import RunOutcome, attempt_ended
from jobqueue.tasks import registry
from jobqueue.tasks.versions import payload_of
from jobqueue.transitions import Lease, reap
from jobqueue.transitions.claiming.plans import LockAndStamp, Row
from jobqueue.transitions.claiming.select_then_update import lock_rows, stamp
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.attempt import Outcome
from jobqueue.worker.run.batch import calls_of
from jobqueue.worker.run.perform import InlineRun, perform
from jobqueue.worker.shared.scoreboard import ProcessSlot

WORKER = "jobqueue.testing"
LEASE_SECONDS = 60.0


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


@dataclass(frozen=True, slots=True)
class Drained:
    """The runs of a drain() or of a run_inline() block, in order."""

    runs: list[JobRun]

    def __str__(self) -> str:
        return "\n".join(str(run) for run in self.runs) or "nothing ran"

    @property
    def ran(self) -> int:
        """The number of runs; a job that was retried counts once for each run."""
        return len(self.runs)

    @property
    def ok(self) -> int:
        """The number of runs that succeeded."""
        return self.count(RunOutcome.OK)

    @property
    def failed(self) -> int:
        """The number of runs that raised, whether the job will be retried or not."""
        return self.count(RunOutcome.RETRY) + self.count(RunOutcome.DEAD)

    @property
    def dead(self) -> int:
        """The number of runs after which the job was FAILED."""
        return self.count(RunOutcome.DEAD)

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of the failed runs."""
        return [
            run.error
            for run in self.runs
            if run.error is not None and run.outcome in (RunOutcome.RETRY, RunOutcome.DEAD)
        ]

    def count(self, outcome: str) -> int:
        """The number of runs with this outcome (see JobRun)."""
        return sum(run.outcome == outcome for run in self.runs)

    def raise_error(self) -> Drained:
        """Raise the first exception of a failed run, with its own traceback; return this object if there is none."""
        if self.errors:
            raise self.errors[0]
        return self


def run_task(task: AnyTask, *args: JSON, attempt: int = 1, tick: datetime | None = None, **kwargs: JSON) -> JSON:
    """Run `task` once, as attempt number `attempt`, as a worker would. Returns the result as it is stored.

    `tick`: what current_job().tick is, aware, as if a schedule had added the job. The job is a real row under a real
    lease, so finish(), heartbeat(), fence and everything else of its context work. Other jobs are not run. Raises what
    the task raises; the job is then READY for its next attempt, or FAILED.
    """
    check_int(attempt, "attempt", 1)
    discover_tasks()
    lease = _start(task, args, kwargs, attempt=attempt, tick=tick)
    (ended,) = run([lease])
    if ended.error is not None:
        raise ended.error
    return Job.objects.using(lease.using).values_list("result", flat=True).get(pk=lease.job_id)


def assert_idempotent(
    task: AnyTask,
    *args: JSON,
    effect: Callable[[], object] | None = None,
    models: Iterable[type[Model]] = (),
    **kwargs: JSON,
) -> None:
    """Run a job of `task`, drop its ack, let the lease expire, run it again. AssertionError if that changed anything.

    Compared after the two runs: what `effect()` returns, and the row counts of `models`. A job that ends by finish()
    does not run again, because its end was committed together with its effect. Raises what the first run raises, and
    AssertionError for what the second run raises.
    """
    __tracebackhide__ = True
    counted = list(models)
    if effect is None and not counted:
        raise InvalidType("assert_idempotent() needs something to compare: effect=, models=, or both.")
    discover_tasks()
    lease = _start(task, args, kwargs)
    (first,) = run([lease], acked=False)
    if first.error is not None:
        raise first.error
    before = _state(effect, counted)
    second = _retake(lease)
    if second is None:
        return
    (ended,) = run([second])
    if ended.error is not None:
        raise AssertionError(f"{task.module_path} raised in its second run: {ended.error!r}") from ended.error
    after = _state(effect, counted)
    changes = [f"{what}: {before[what]!r} -> {after[what]!r}" for what in before if before[what] != after[what]]
    if changes:
        raise AssertionError(
            f"{task.module_path} is not idempotent: a second run after a lost ack changed {'; '.join(changes)}. "
            "Put its writes into context.finish(), or check before you write."
        )


def expire_lease(job: object, *, using: str | None = None) -> None:
    """Let the lease of a job expire now, as if its worker had died; reap() and drain() then give the job back.

    `job` is a Lease, a Job, a TaskResult or an id. Raises InvalidValue if the job has no lease.
    """
    alias = using or getattr(job, "using", None) or load().database
    job_id = check_id(next((getattr(job, name) for name in ("job_id", "pk", "id") if hasattr(job, name)), job))
    rows = Job.objects.using(alias).filter(pk=job_id)
    if not rows.leased().update(lock_until=UtcNowPlus(-1.0)):
        found = rows.values_list("status", flat=True).first()
        state = "not in the table" if found is None else Job.Status(found).name
        raise InvalidValue(f"job {job_id} is {state}, so it has no lease that could expire.")


@cache
def discover_tasks() -> None:
    """Import <app>/tasks.py of every app, once, as a worker does when it starts."""
    list(registry.discover())


def take_lease(job_id: int, *, using: str, attempt: int | None = None) -> Lease | None:
    """A lease on this job, whatever else is due; None if it is not READY. claim() would take the first due job."""
    ready = Job.objects.using(using).filter(pk=job_id, status=Job.Status.READY)
    if attempt is not None:
        ready.update(attempts=attempt - 1)
    queue = ready.values_list("queue", flat=True).first()
    if queue is None:
        return None
    plan, token = LockAndStamp(queue, 1, 1, WORKER, LEASE_SECONDS, using), uuid.uuid4().bytes
    with vendor(using).transaction(connections[using]):
        leases = [plan.lease(Row._make(row), token) for row in lock_rows(ready, 1, using)]
        return next(iter(stamp(leases, token, plan)), None)


def run(leases: Sequence[Lease], *, acked: bool = True) -> Iterator[JobRun]:
    """Run the jobs of `leases`, all of one queue, in as many calls as a worker would make, and settle them.

    acked=False: the runs are not settled, as if the worker had died before its acks. Re-raises KeyboardInterrupt, which
    most likely comes from you, not the job. Raises DatabaseBusy if the end of a run cannot be written.
    """
    for call in calls_of(leases)[0]:
        outcomes = perform(call, InlineRun(as_committed()))
        for outcome in outcomes:
            if isinstance(outcome.error, KeyboardInterrupt):
                raise outcome.error
        for outcome in outcomes:
            lease, ended = outcome.lease, _settle(outcome) if acked else RunOutcome.LOST
            yield JobRun(lease.job_id, lease.queue, lease.task or "handler", lease.attempt, ended, outcome.error)


def _settle(outcome: Outcome) -> str:
    """Write the end of a run, and return what it was."""
    ends: list[str] = []

    def note(outcome: str, **_: object) -> None:
        ends.append(outcome)

    attempt_ended.connect(note)
    try:
        left = [outcome]
        for attempt in range(3):
            left = settle(left, ProcessSlot(), again=attempt > 0)
            if not left:
                break
    finally:
        attempt_ended.disconnect(note)
    if not ends:
        raise DatabaseBusy(f"job {outcome.lease.job_id} ran, but its end could not be written; it is still PROCESSING.")
    return ends[0]


@contextmanager
def as_committed() -> Iterator[None]:
    """Keep what the block writes in a test case's transaction, also if it raises, and make its on_commit calls.

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
        while len(connection.run_on_commit) > earlier:
            connection.run_on_commit.pop(earlier)[1]()
        return False

    return end


def _start(
    task: AnyTask,
    args: Sequence[JSON],
    kwargs: Mapping[str, JSON],
    *,
    attempt: int = 1,
    tick: datetime | None = None,
) -> Lease:
    """Add a job of `task` and take its lease, whatever the task's backend, delay and dedupe key are."""
    if not isinstance(task, Task):
        raise InvalidType(
            f"a task is needed, got {task!r:.80}. Nothing was run; decorate the function with @task and pass its name."
        )
    payload = payload_of(task, args, kwargs)
    if registry.find_task(task.module_path) is None:
        registry.add_task(task.module_path, task)
    using = getattr(task.get_backend(), "database", None) or load().database
    spec = spec_of(task)
    job = new_job(task.queue_name, payload, priority=int(task.priority), max_attempts=spec.max_attempts)
    job = replace(job, task=task.module_path, lease_seconds=spec.lease_seconds)
    if tick is not None:
        job = replace(job, options=Encoded(json.dumps({"tick": check_instant(tick, "tick").isoformat()})))
    (job,) = with_context([job])
    # Not by the producer, whose signal would make run_inline() run the job.
    (job_id,) = insertion([job], using, 0.0)()
    lease = take_lease(job_id, using=using, attempt=attempt)
    assert lease is not None
    return lease


def _retake(lease: Lease) -> Lease | None:
    """The next lease on the job, after nobody has acked this one; None if the job has ended."""
    if Job.objects.using(lease.using).leased().filter(pk=lease.job_id).exists():
        expire_lease(lease)
        reap(using=lease.using)
    return take_lease(lease.job_id, using=lease.using)


def _state(effect: Callable[[], object] | None, models: list[type[Model]]) -> dict[str, object]:
    found: dict[str, object] = {f"rows of {model._meta.label}": model._default_manager.count() for model in models}
    if effect is not None:
        found["the effect"] = effect()
    return found
