"""Which limits the jobs of a task have: those it was declared with, unless an operator has set others."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.gates import declared
from jobqueue.gates.rules import Rules, last_rules
from jobqueue.gates.subjects import Subject, rate_subject, slot_subject


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
    ruled = (name for place, task in rules.tasks if place == queue for name in declared.names_of(task))
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


def slot_to_free(queue: str, task: str | None, slot: int | None, using: str) -> int | None:
    """The subject of the slot that a lease frees with its end; None if no job can wait for it.

    A lease without a slot began before its task had a limit. It counts against that limit all the same.
    """
    if slot is not None or task is None:
        return slot
    slots, _ = limits_of(queue, task, None, last_rules(using))
    return slots.subject.number if slots is not None else None
