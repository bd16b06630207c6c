"""The first argument of a task with takes_context=True: Django's TaskContext and ours in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobqueue.compat import TaskContext
from jobqueue.context.job_context import JobContext
from jobqueue.tasks.results import backend_of, started_result
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
    return JobTaskContext(task_result=started_result(task, lease, backend_of(task)), job=context)
