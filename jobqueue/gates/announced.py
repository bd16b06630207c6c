"""The limits that a worker process knows. It announces them in job_worker: older code may not know all of them."""

from __future__ import annotations

from typing import Any

from jobqueue.conf import load
from jobqueue.gates import declared
from jobqueue.payload import JSON


def own_limits() -> JSON:
    """The limits of tasks and of queues that the code and the settings of this process have.

    {"tasks": {path: [concurrency, starts per second]}, "queues": {name: [concurrency, rate]}}, with null for no limit.
    Pauses, and limits that an operator has set, are not among them: every worker reads those from the database.
    """
    return {
        "tasks": {path: _of_task(path) for path in sorted(declared.tasks())},
        "queues": {name: _of_queue(name) for name in sorted(load().queues) if any(_of_queue(name))},
    }


def knows(announced: Any, queue: str, task: str | None) -> bool:
    """Whether a worker that has announced this limits the jobs of `queue`, or of a task in it, as this process does.

    `announced` None: it knows no limits at all. What it cannot be read from counts as not known.
    """
    if not isinstance(announced, dict):
        return False
    kind, name, own = ("queues", queue, _of_queue(queue)) if task is None else ("tasks", task, _of_task(task))
    limits = announced.get(kind)
    return isinstance(limits, dict) and limits.get(name, [None, None]) == own


def _of_task(path: str) -> list[Any]:
    return list(declared.of_task(path))


def _of_queue(name: str) -> list[Any]:
    own = load().queues.get(name)
    if own is None:
        return [None, None]
    # As JSON has it.
    most = list(own.concurrency) if isinstance(own.concurrency, (tuple, list)) else own.concurrency
    return [most, own.rate]
