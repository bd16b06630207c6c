"""(a) Enqueueing jobs one by one, each with its own commit, and 1,000 at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench, alternate
from benchmarks.fill import OURS, REFERENCE, empty
from benchmarks.stats import ratios, spread

BULK = 1000


def run(bench: Bench) -> dict[str, Any]:
    """Jobs a second, and ours / reference."""
    from benchmarks.tasks import stamp
    from jobqueue import enqueue, enqueue_many

    plan, reference = bench.plan, bench.reference()
    many = [{"args": [n], "kwargs": {}} for n in range(BULK)]
    for table in (OURS, REFERENCE):
        empty(bench.target, bench.connection, table)
    single: dict[str, Callable[[], Any]] = {
        "enqueue()": lambda: timed(plan.enqueue_single, lambda n: enqueue("bench", many[n % BULK])),
        "raw INSERT": lambda: timed(plan.enqueue_single, lambda n: reference.enqueue([many[n % BULK]])),
        "task.enqueue()": lambda: timed(plan.enqueue_single, lambda n: stamp.enqueue(n)),
    }
    for peer in bench.peers:
        single[peer.name] = lambda peer=peer: peer.attempt(lambda: peer.produce(plan.enqueue_single))  # type: ignore[misc]
    bulk: dict[str, Callable[[], Any]] = {
        "enqueue_many()": lambda: timed(plan.enqueue_bulk, lambda n: enqueue_many("bench", many), BULK),
        "raw INSERT": lambda: timed(plan.enqueue_bulk, lambda n: reference.enqueue(many), BULK),
    }
    record = {"single": compared(alternate(single, plan.rounds)), "bulk": compared(alternate(bulk, plan.rounds))}
    reference.connection.close()
    return record


def timed(times: int, call: Callable[[int], Any], jobs: int = 1) -> float:
    """Jobs a second of `times` calls, after one call that connects and fills caches."""
    call(times)
    begun = time.perf_counter()
    for number in range(times):
        call(number)
    return times * jobs / (time.perf_counter() - begun)


def compared(found: dict[str, list[Any]], raw: str = "raw INSERT") -> dict[str, Any]:
    """The rates of each contestant, and their ratios to the reference in the same round."""
    return {name: {"per_second": spread(v), "ratio": ratios(v, found[raw])} for name, v in found.items()}
