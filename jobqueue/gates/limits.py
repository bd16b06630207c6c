"""Which limits the jobs of a task have: those it was declared with, unless an operator has set others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from jobqueue.conf.known_tasks import names_of
from jobqueue.gates import declared
from jobqueue.gates.rules import Rules, last_rules
from jobqueue.gates.subjects import Subject, rate_subject, slot_subject
from jobqueue.models import Job


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
