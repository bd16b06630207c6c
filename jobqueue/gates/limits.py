"""What jobs wait for, and how many may start: the limits of queues, of tasks in them, and of concurrency keys.

A limit is that which an operator has set, else that of the settings or of the code of the task. A worker process
announces those that it knows in job_worker: older code may not know all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.conf.known_tasks import names_of, path_of
from jobqueue.gates import declared
from jobqueue.gates.rules import NO_RULE, Rules, last_rules
from jobqueue.models import Job

REASON_CHARS = 200
#: how the wait_reasons of jobs at gates begin: the codes of gates.kinds.KINDS. SLOT is that of the slots of a whole
#: task, KEY that of the slots of one concurrency key
PAUSED, BREAKER, SLOT, KEY, RATE = "paused", "breaker", "slot", "key", "rate"


class Subject(NamedTuple):
    """Something that jobs wait for. Two with equal numbers, one pair in 10**19, would share their slots or tokens."""

    number: int
    wait_reason: str  # a code and its subject


def slot_subject(queue: str, task: str, key: bytes | None = None) -> Subject:
    """The slots of a task in a queue, or of one concurrency key there."""
    return subject_of("slot", KEY if key is not None else SLOT, queue, task, key)


def rate_subject(queue: str, task: str, key: bytes | None = None) -> Subject:
    """The starts of a task in a queue, or of one concurrency key there."""
    return subject_of("rate", RATE, queue, task, key)


def whole_queue_subject(queue: str) -> Subject:
    """The limits of a whole queue."""
    return Subject(_number("queue", queue), _cut(f"queue {queue}"))


def pause_subject(queue: str, task: str) -> Subject:
    """The pause of a task in a queue."""
    return subject_of("pause", PAUSED, queue, task)


def breaker_subject(dependency: str) -> Subject:
    """The circuit breaker of a dependency."""
    return Subject(_number("breaker", dependency), _cut(f"{BREAKER} {dependency}"))


def dependency_named(wait_reason: str) -> str | None:
    """The dependency whose breaker a wait_reason is about; None if it is about something else."""
    code, _, dependency = wait_reason.partition(" ")
    return dependency if code == BREAKER and dependency else None


def readable_key(key: bytes) -> str:
    """A key as text: itself if it is printable UTF-8, else in hexadecimal."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def subject_of(kind: str, code: str, queue: str, task: str, key: bytes | None = None) -> Subject:
    """What jobs of a task, or of a key, wait for in a queue. `kind` and these tell it from all others."""
    if key is None:
        task = path_of(task)
        return Subject(_number(kind, queue, task), _cut(f"{code} {task}"))
    return _subject_of_key(kind, code, queue, key)


@lru_cache(maxsize=10_000)
def _subject_of_key(kind: str, code: str, queue: str, key: bytes) -> Subject:
    # Without the task: jobs of several tasks may share a key of their queue.
    return Subject(_number(f"{kind} of key", queue, key), _cut(f"{code} {readable_key(key)}"))


def _number(*names: str | bytes) -> int:
    """A number from 0 to 2**63 - 1. No name of ours contains a NUL but a key, which comes last."""
    parts = (name if isinstance(name, bytes) else name.encode() for name in names)
    return int.from_bytes(hashlib.sha256(b"\0".join(parts)).digest()[:8], "big") >> 1


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1] + "…"


class Limits(NamedTuple):
    """What holds for a queue, or for a task in it; None: no limit."""

    paused: bool
    most: int | None
    per_second: float | None

    @property
    def none(self) -> bool:
        """Whether claims need not ask."""
        return self.most is None and self.per_second is None


NO_LIMITS = Limits(False, None, None)


def limits_at(queue: str, rules: Rules, task: str | None = None) -> Limits:
    """What an operator has set for `queue`, or for `task` in it; else what the settings, or the code of the task, say.

    No job waits at a gate for the limits of a whole queue: a claim is told how many jobs it may take. So a pause of a
    million jobs is one row.
    """
    if task is None:
        rule, (most, per_second) = rules.of_queue(queue), declared.of_queue(queue)
    else:
        rule, (most, per_second) = rules.of_task(queue, task), declared.of_task(task)
    if most is None and per_second is None and rule is NO_RULE:
        return NO_LIMITS
    if isinstance(most, (tuple, list)):
        least, highest = most
        most = min(highest, max(least, rule.level or least))
    limit = rule.concurrency if rule.sets_concurrency else most
    per_second = rule.per_second if rule.sets_rate else per_second
    return Limits(rule.paused or limit == 0 or per_second == 0, limit, per_second)


def limited_queues(rules: Rules) -> list[str]:
    """The queues that have a limit of their own, and are not paused."""
    limits = {queue: limits_at(queue, rules) for queue in {*rules.queues, *load().queues}}
    return [queue for queue, own in limits.items() if not own.none and not own.paused]


class Place(NamedTuple):
    """Whose slots those of a subject are: those of a task in a queue, or those of a key."""

    queue: str
    task: str | None
    key: bytes | None = None


class Slots(NamedTuple):
    """So many jobs of a subject may run at once."""

    subject: Subject
    most: int
    place: Place


class Rate(NamedTuple):
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
    own = limits_at(queue, rules, task)
    slots = None
    if own.most is not None:
        place = Place(queue, task) if key is None else Place(queue, None, bytes(key))
        slots = Slots(slot_subject(queue, task, key), own.most, place)
    return slots, None if own.per_second is None else Rate(rate_subject(queue, task, key), own.per_second)


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
