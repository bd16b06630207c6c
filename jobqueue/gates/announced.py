"""The limits that a worker process knows. It announces them in job_worker: older code may not know all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from jobqueue.conf import load
from jobqueue.gates import declared
from jobqueue.gates.rules import Rules
from jobqueue.gates.subjects import rate_subject, slot_subject
from jobqueue.payload import JSON


class Announcing(Protocol):
    """Running workers that are alike."""

    @property
    def announced(self) -> Any: ...
    def serves(self, queue: str) -> bool:
        """Whether they claim from it."""


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


class LimitedGate(NamedTuple):
    """The columns of a gate: that of a slot has `most`, that of a rate per_second."""

    subject: int
    queue: str
    task: str
    most: int | None
    per_second: float | None


def limits_in_effect(
    gate: LimitedGate, workers: Iterable[Announcing], rules: Rules
) -> tuple[int | None, float | None] | None:
    """What `most` and per_second of a gate are to be: as operators have set it, else as in the code of running workers.

    While some run older code, the higher limit counts: claims go by their own. A limit is gone when none has it. None:
    no worker that runs serves the queue; or this is the gate of a key, and its task is paused, but jobs of other tasks
    may wait there, too.
    """
    queue, task = gate.queue, gate.task
    rule = rules.of_task(queue, task)
    if rule.starts_nothing and gate.subject not in (slot_subject(queue, task).number, rate_subject(queue, task).number):
        return None
    serving = [worker.announced for worker in workers if worker.serves(queue)]
    known = [limits for one in serving if (limits := _announced_of(one, task)) is not None]
    if gate.per_second is not None:
        if not (rule.sets_rate or serving):
            return None
        return None, rule.per_second if rule.sets_rate else _highest(pace for _, pace in known)
    if not (rule.sets_concurrency or serving):
        return None
    return rule.concurrency if rule.sets_concurrency else _highest(most for most, _ in known), None


def _announced_of(announced: Any, task: str) -> tuple[Any, Any] | None:
    tasks = announced.get("tasks") if isinstance(announced, dict) else None
    found = tasks.get(task) if isinstance(tasks, dict) else None
    return (found[0], found[1]) if isinstance(found, list) and len(found) == 2 else None


def _highest(limits: Iterable[Any]) -> Any:
    known = list(limits)
    return None if None in known else max(known, default=None)


def _of_task(path: str) -> list[Any]:
    return list(declared.of_task(path))


def _of_queue(name: str) -> list[Any]:
    own = load().queues.get(name)
    if own is None:
        return [None, None]
    # As JSON has it.
    most = list(own.concurrency) if isinstance(own.concurrency, (tuple, list)) else own.concurrency
    return [most, own.rate]
