"""(a) Enqueueing jobs one by one, each with its own commit, and 1,000 at once; and what it costs a web request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench, alternate
from benchmarks.fill import OURS, REFERENCE, empty
from benchmarks.reference import Reference
from benchmarks.stats import ratios, spread
from benchmarks.target import execute

BULK = 1000
#: calls in one transaction, and turns in a round, where processor time is measured: a busy machine disturbs few of them
IN_TRANSACTION, TURNS = 100, 5


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
    record["cpu"] = _cpu(bench, reference)
    reference.connection.close()
    return record


def _cpu(bench: Bench, reference: Reference) -> dict[str, Any]:
    """Microseconds of processor time that one call costs its thread in a transaction of the caller, and ours / raw."""
    from django.db import transaction

    from benchmarks.tasks import stamp
    from jobqueue import enqueue

    def ours(call: Callable[[int], Any]) -> float:
        with transaction.atomic():
            return _burnt(call)

    def raw() -> float:
        execute(reference.connection, reference.begin)
        try:
            return _burnt(lambda n: reference.enqueue([{"args": [n], "kwargs": {}}]))
        finally:
            execute(reference.connection, "COMMIT")

    calls: dict[str, Callable[[], Any]] = {
        "enqueue()": lambda: ours(lambda n: enqueue("bench", {"args": [n], "kwargs": {}})),
        "raw INSERT": raw,
        "task.enqueue()": lambda: ours(lambda n: stamp.enqueue(n)),
    }
    found = alternate(calls, bench.plan.rounds * TURNS)
    return {name: {"us": spread(v), "ratio": ratios(v, found["raw INSERT"])} for name, v in found.items()}


def _burnt(call: Callable[[int], Any]) -> float:
    call(0)  # fills caches
    begun = time.thread_time()
    for number in range(IN_TRANSACTION):
        call(number)
    return (time.thread_time() - begun) / IN_TRANSACTION * 1e6


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
