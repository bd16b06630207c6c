"""The cause of an error that a job of a task has raised, by the rules of the task, of JOBQUEUE and of the package."""

from __future__ import annotations

from jobqueue.conf import load
from jobqueue.conf.known_tasks import spec_at
from jobqueue.failures import FailureCause, classify


def cause_of(error: BaseException | str, task: str | None) -> FailureCause:
    """The cause class of `error`. `task` is the name on the job's row; None for the row of a handler."""
    return classify(error, (spec_at(task).causes, load().causes))
