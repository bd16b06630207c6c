"""The first argument of a task with takes_context=True: Django's TaskContext and ours in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobqueue.compat import TaskContext, TaskResult, TaskResultStatus
from jobqueue.context import JobContext
from jobqueue.transitions import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTaskContext(TaskContext):
    """Django's context (task_result, attempt) that also answers everything JobContext does."""

    job: JobContext

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.job.attempt

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "job":
            raise AttributeError(name)
        return getattr(self.job, name)


def task_context(task: Any, lease: Lease, context: JobContext) -> JobTaskContext:
    """The context of a running task; its TaskResult is RUNNING and carries no earlier errors."""
    result: Any = TaskResult(
        task=task,
        id=str(lease.job_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=lease.locked_at,
        finished_at=None,
        last_attempted_at=lease.locked_at,
        args=list(lease.payload.get("args", [])),
        kwargs=dict(lease.payload.get("kwargs", {})),
        backend=task.backend,
        errors=[],
        worker_ids=[lease.worker] * lease.attempt,
    )
    return JobTaskContext(task_result=result, job=context)
