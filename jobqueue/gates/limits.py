"""Which limits the jobs of a task have: those it was declared with, unless an operator has set others.

And which limits a worker process knows. It announces them in job_worker: older code may not know all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jobqueue.conf import load
from jobqueue.conf.known_tasks import names_of
from jobqueue.gates import declared
from jobqueue.gates.rules import Rules, last_rules
from jobqueue.gates.subjects import Subject, rate_subject, slot_subject
from jobqueue.models import Job
from jobqueue.payload import JSON


@dataclass(frozen=True, slots=True)
class Slots:
    """So many jobs of a subject may run at once."""

    subject: Subject
    most: int


@dataclass(frozen=True, slots=True)
class Rate:
    """So many jobs of a subject may start in a second; 0: none."""

    subject: Subject
    per_second: float


def limited_tasks(queue: str, rules: Rules) -> tuple[str, ...]:
    """The tasks that may have a limit in `queue`, or are paused there; () where a claim need not check anything."""
    if not declared.tasks() and not rules.tasks:
        return ()
    ruled = (name for place, task in rules.tasks if place == queue for name in names_of(task))
    return tuple(sorted({*declared.tasks(), *ruled}))


def limits_of(queue: str, task: str | None, key: bytes | None, rules: Rules) -> tuple[Slots | None, Rate | None]:
    """The limits of a job's concurrency and rate. With a key they are those of each key, else of the task."""
    if task is None:
        return None, None
    own, rule = declared.of_task(task), rules.of_task(queue, task)
    most = rule.concurrency if rule.sets_concurrency else own.concurrency
    pace = rule.per_second if rule.sets_rate else own.per_second
    slots = None if most is None else Slots(slot_subject(queue, task, key), most)
    return slots, None if pace is None else Rate(rate_subject(queue, task, key), pace)


class Ended(Protocol):
    """A lease that has ended."""

    @property
    def job_id(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def task(self) -> str | None: ...
    @property
    def slot(self) -> int | None: ...


def slots_to_free(leases: Iterable[Ended], using: str) -> list[int]:
    """The subjects of the slots that leases free with their ends, one for each for which jobs can wait.

    A lease without a slot began before its task had a limit. It counts against that limit all the same.
    """
    known, all_leases = last_rules(using), list(leases)
    found = [lease.slot for lease in all_leases if lease.slot is not None]
    if not declared.tasks() and not known.tasks:
        return found
    early = [
        one for one in all_leases if one.slot is None and limits_of(one.queue, one.task, None, known)[0] is not None
    ]
    if not early:
        return found
    keys = dict(
        Job.objects.using(using).filter(pk__in=[one.job_id for one in early]).values_list("pk", "concurrency_key")
    )
    for lease in early:
        key = keys.get(lease.job_id)
        slots, _ = limits_of(lease.queue, lease.task, None if key is None else bytes(key), known)
        if slots is not None:
            found.append(slots.subject.number)
    return found


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
