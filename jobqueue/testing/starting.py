"""A job of a task, added and leased at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobqueue.conf import load
from jobqueue.producer.enqueueing import new_job
from jobqueue.producer.insert import insertion
from jobqueue.tasks import registry
from jobqueue.tasks.versions import payload_of
from jobqueue.testing.leases import take_lease
from jobqueue.transitions import Lease


def start(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, attempt: int = 1) -> Lease:
    """Add a job of `task` and take the lease on it, whatever the task's backend, delay and dedupe key."""
    payload = payload_of(task, args, kwargs)
    if registry.find_task(task.module_path) is None:
        registry.add_task(task.module_path, task)
    using = getattr(task.get_backend(), "database", None) or load().database
    most = getattr(task, "max_attempts", None)
    job = new_job(task.queue_name, payload, priority=int(task.priority), max_attempts=most)
    job = replace(job, task=task.module_path, lease_seconds=getattr(task, "lease_seconds", None))
    # Not by the producer, whose signal would make run_inline() run the job.
    (job_id,) = insertion([job], using, 0.0)()
    lease = take_lease(job_id, using=using, attempt=attempt)
    assert lease is not None
    return lease
