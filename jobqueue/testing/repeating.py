"""A job that runs twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.db.models import Model

from jobqueue.exceptions import InvalidType
from jobqueue.models import Job
from jobqueue.testing.leases import expire_lease, take_lease
from jobqueue.testing.runs import discover_tasks, perform_here, settled
from jobqueue.testing.starting import start
from jobqueue.transitions import Lease, reap


def assert_idempotent(
    task: Any,
    *args: Any,
    effect: Callable[[], Any] | None = None,
    models: Iterable[type[Model]] = (),
    **kwargs: Any,
) -> None:
    """Run a job of `task`, lose its ack, let the lease run out, run it again; AssertionError if that changed anything.

    What is compared after the two runs: what `effect()` returns, and the row counts of `models`. A job that ends by
    finish() is not delivered again, because its end was in the same commit as its effect. Raises what the first run
    raises, and AssertionError from what the second one raises.
    """
    __tracebackhide__ = True
    counted = list(models)
    if effect is None and not counted:
        raise InvalidType("assert_idempotent() needs something to compare: effect=, models=, or both.")
    discover_tasks()
    lease = start(task, args, kwargs)
    first = perform_here(lease)
    if first.error is not None:
        raise first.error
    before = _seen(effect, counted)
    second = _deliver_again(lease)
    if second is None:
        return
    ended = settled(perform_here(second))
    if ended.error is not None:
        raise AssertionError(f"{_name(task)} raised when it ran again: {ended.error!r}") from ended.error
    after = _seen(effect, counted)
    changes = [f"{what}: {before[what]!r} -> {after[what]!r}" for what in before if before[what] != after[what]]
    if changes:
        raise AssertionError(
            f"{_name(task)} is not idempotent: running it again after its ack was lost changed {'; '.join(changes)}. "
            "Put its writes into context.finish(), or let them look first."
        )


def _deliver_again(lease: Lease) -> Lease | None:
    """The next lease on the job after this one was never answered; None if the job has ended."""
    if Job.objects.using(lease.using).leased().filter(pk=lease.job_id).exists():
        expire_lease(lease)
        reap(using=lease.using)
    return take_lease(lease.job_id, using=lease.using)


def _seen(effect: Callable[[], Any] | None, models: list[type[Model]]) -> dict[str, Any]:
    seen: dict[str, Any] = {f"rows of {model._meta.label}": model._default_manager.count() for model in models}
    if effect is not None:
        seen["the effect"] = effect()
    return seen


def _name(task: Any) -> str:
    return str(task.module_path)
