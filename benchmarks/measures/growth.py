"""(d) The cost of a claim of 100 jobs as the table grows: tables of all sizes are measured in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.bench import Bench, alternate
from benchmarks.fill import OURS, REFERENCE, fill, refresh
from benchmarks.reference import Reference
from benchmarks.stats import ratios, spread
from benchmarks.target import Target

BATCH = 100


@dataclass(frozen=True)
class Table:
    """One size."""

    label: str
    target: Target
    alias: str


def run(bench: Bench) -> dict[str, Any]:
    """Milliseconds per claim and per finish; each size compared with the smallest of the same round."""
    tables = _build(bench)
    contestants: dict[str, Callable[[], Any]] = {}
    for table in tables:
        reference = Reference(table.target)
        contestants[f"jobqueue|{table.label}"] = lambda t=table: _ours(bench, t)  # type: ignore[misc]
        contestants[f"raw|{table.label}"] = lambda t=table, r=reference: _raw(bench, t, r)  # type: ignore[misc]
    try:
        alternate(contestants, 1)  # warm-up: the first claim reads pages that are not in memory yet
        found = alternate(contestants, bench.plan.rounds)
    finally:
        _drop(tables)
    record: dict[str, Any] = {}
    for key, values in found.items():
        who, label = key.split("|")
        record.setdefault(label, {})[who] = {
            "claim_ms": spread([value["claim"] for value in values]),
            "finish_ms": spread([value["finish"] for value in values]),
            "ratio": _ratio(values, found[f"{who}|{tables[0].label}"]),
        }
    return record


def _ratio(values: list[Any], smallest: list[Any]) -> dict[str, Any] | None:
    return ratios([value["claim"] for value in values], [value["claim"] for value in smallest])


def _build(bench: Bench) -> list[Table]:
    plan = bench.plan
    sizes = [(ready, 0) for ready in plan.growth_ready]
    sizes.append((plan.growth_ready[-1], plan.growth_finished))
    tables = []
    for number, (ready, finished) in enumerate(sizes):
        label = f"{ready:,} ready" + (f" + {finished:,} finished" if finished else "")
        bench.say(f"growth: filling {label}")
        table = Table(label, bench.target.sibling(f"g{number}"), f"growth_{number}")
        bench.build(table.target, table.alias)
        connection = table.target.connect()
        for name in (OURS, REFERENCE):
            fill(table.target, connection, name, finished, finished=True)
            fill(table.target, connection, name, ready)
            refresh(table.target, connection, name)
        connection.close()
        tables.append(table)
    return tables


def _drop(tables: list[Table]) -> None:
    from django.db import connections

    for table in tables:
        connections[table.alias].close()
        table.target.drop()


def _ours(bench: Bench, table: Table) -> dict[str, float]:
    from jobqueue import transitions
    from jobqueue.transitions.claiming.claimer import Claimer

    claimer = Claimer("bench", table.alias)

    def claim() -> Any:
        return claimer.claim("bench", BATCH, lease_seconds=60)

    found = timed(bench.plan.growth_claims, claim, transitions.ack_many)
    _refill(bench, table, OURS)
    return found


def _raw(bench: Bench, table: Table, reference: Reference) -> dict[str, float]:
    found = timed(bench.plan.growth_claims, lambda: reference.claim(BATCH), lambda got: reference.finish(*got))
    _refill(bench, table, REFERENCE)
    return found


def _refill(bench: Bench, table: Table, name: str) -> None:
    """Restore the number of ready rows, so that the small table does not become empty."""
    connection = table.target.connect()
    fill(table.target, connection, name, bench.plan.growth_claims * BATCH)
    connection.close()


def timed(claims: int, claim: Callable[[], Any], finish: Callable[[Any], Any]) -> dict[str, float]:
    """Median milliseconds of `claims` claims and of as many finishes."""
    claim_ms, finish_ms = [], []
    for _ in range(claims):
        begun = time.perf_counter()
        got = claim()
        claimed = time.perf_counter()
        finish(got)
        finish_ms.append((time.perf_counter() - claimed) * 1000)
        claim_ms.append((claimed - begun) * 1000)
        if not got or not (got[0] if isinstance(got, tuple) else got):
            raise RuntimeError("a claim came back empty")
    return {"claim": median(claim_ms), "finish": median(finish_ms)}
