"""Writes into gates the limits that are in effect: rows keep those that the last claim there went by.

That claim may not have known yet what an operator had set, or its code has been replaced since, or it was for a job of
another task with the same key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.gates.announced import Announcing, LimitedGate, limits_in_effect
from jobqueue.gates.rules import rules
from jobqueue.gates.unlocked import update_unlocked
from jobqueue.models import Gate

#: the workers that run on a database, with the limits that their code has
Workers = Callable[[str], Sequence[Announcing]]
#: the limits of a gate: `most` and per_second
_Limits = tuple[int | None, float | None]


def no_workers(using: str) -> Sequence[Announcing]:
    """None: gates keep what they have, but for what operators have set."""
    return ()


def renew_limits(subjects: Collection[int], workers: Workers, using: str) -> None:
    """Let those of these gates be looked at that have other limits than the task that they name."""
    gates = _limited(subjects, using)
    if not gates:
        return
    known, running = rules(using), retry_transient("promote", partial(workers, using), using=using)
    found = ((gate, limits_in_effect(gate, running, known)) for gate in gates)
    _write([(gate, own) for gate, own in found if own is not None and own != _limits(gate)], using)


def raise_limits(waiting: Mapping[int, Collection[tuple[str, str | None]]], workers: Workers, using: str) -> None:
    """Let gates be looked at behind which jobs of a task with a higher limit wait than that of the task that they name.

    `waiting`: queues and tasks of jobs that wait, by subject. Tasks may share a key of their queue.
    """
    gates = [gate for gate in _limited(waiting, using) if any(place != gate[1:3] for place in waiting[gate.subject])]
    if not gates:
        return
    known, running = rules(using), retry_transient("promote", partial(workers, using), using=using)
    higher: list[tuple[LimitedGate, _Limits]] = []
    for gate in gates:
        best = gate
        for queue, task in waiting[gate.subject]:
            if task is None or (queue, task) == gate[1:3]:
                continue
            other = limits_in_effect(gate._replace(queue=queue, task=task), running, known)
            if other is not None and _is_higher(other, _limits(best)):
                best = gate._replace(task=task, most=other[0], per_second=other[1])
        if best is not gate:
            higher.append((best, _limits(best)))
    _write(higher, using)


def _is_higher(limits: _Limits, others: _Limits) -> bool:
    return any(
        other is not None and (limit is None or limit > other) for limit, other in zip(limits, others, strict=True)
    )


def _limits(gate: LimitedGate) -> _Limits:
    return gate.most, gate.per_second


def _limited(subjects: Collection[int], using: str) -> list[LimitedGate]:
    rows = Gate.objects.using(using).filter(pk__in=subjects, queue__isnull=False, task__isnull=False)
    limited = rows.exclude(most=None, per_second=None).values_list(*LimitedGate._fields)
    found: list[tuple[Any, ...]] = retry_transient("promote", partial(list, limited), using=using)
    return [LimitedGate(*row) for row in found]


def _write(gates: Sequence[tuple[LimitedGate, _Limits]], using: str) -> None:
    alike: dict[tuple[str, _Limits], list[int]] = defaultdict(list)
    for gate, limits in gates:
        alike[gate.task, limits].append(gate.subject)
    for (task, (most, per_second)), subjects in alike.items():
        rows = Gate.objects.using(using).filter(pk__in=subjects)
        values: dict[str, object] = {
            "task": task,
            "most": most,
            "per_second": per_second,
            "opens_at": UtcNow(),
            "updated_at": UtcNow(),
        }
        update_unlocked(rows, using, **values)
