"""One job of a task, run in this thread: once as a worker runs it, or twice to see what the second run changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from django.db.models import Model

from jobqueue.compat import AnyTask, Task
from jobqueue.conf import load
from jobqueue.conf.task_spec import spec_of
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import InvalidType
from jobqueue.models import Job
from jobqueue.payload import JSON
from jobqueue.producer.enqueueing import new_job
from jobqueue.producer.insert import insertion
from jobqueue.tasks import registry
from jobqueue.tasks.versions import payload_of
from jobqueue.testing.leases import expire_lease, take_lease
from jobqueue.testing.runs import discover_tasks, perform_here, run, settled
from jobqueue.transitions import Lease, reap
from jobqueue.validation import check_instant, check_int


def run_task(task: AnyTask, *args: JSON, attempt: int = 1, tick: datetime | None = None, **kwargs: JSON) -> JSON:
    """Run `task` once, as attempt number `attempt`, as a worker would. Returns the result as it is stored.

    `tick`: what current_job().tick is, aware, as if a schedule had added the job. The job is a real row under a real
    lease, so finish(), heartbeat(), fence and everything else of its context work. Other jobs are not run. Raises what
    the task raises; the job is then READY for its next attempt, or FAILED.
    """
    check_int(attempt, "attempt", 1)
    discover_tasks()
    lease = _start(task, args, kwargs, attempt=attempt, tick=tick)
    ended = run(lease)
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
    first = perform_here(lease)
    if first.error is not None:
        raise first.error
    before = _state(effect, counted)
    second = _retake(lease)
    if second is None:
        return
    ended = settled(perform_here(second))
    if ended.error is not None:
        raise AssertionError(f"{task.module_path} raised in its second run: {ended.error!r}") from ended.error
    after = _state(effect, counted)
    changes = [f"{what}: {before[what]!r} -> {after[what]!r}" for what in before if before[what] != after[what]]
    if changes:
        raise AssertionError(
            f"{task.module_path} is not idempotent: a second run after a lost ack changed {'; '.join(changes)}. "
            "Put its writes into context.finish(), or check before you write."
        )


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
