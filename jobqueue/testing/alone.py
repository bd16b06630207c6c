"""One task, run with a real context."""

from __future__ import annotations

from typing import Any

from jobqueue.models import Job
from jobqueue.payload import JSON
from jobqueue.testing.runs import discover_tasks, run
from jobqueue.testing.starting import start
from jobqueue.validation import check_int


def run_task(task: Any, *args: JSON, attempt: int = 1, **kwargs: JSON) -> JSON:
    """Run `task` once, as attempt number `attempt`, as a worker would; its result as it is stored.

    The job is a real row under a real lease, so that a context's finish(), heartbeat(), fence and all else work; other
    jobs are left alone. Raises what the task raises; the job is then READY for its next attempt, or FAILED.
    """
    check_int(attempt, "attempt", 1)
    discover_tasks()
    lease = start(task, args, kwargs, attempt=attempt)
    ended = run(lease)
    if ended.error is not None:
        raise ended.error
    return Job.objects.using(lease.using).values_list("result", flat=True).get(pk=lease.job_id)
