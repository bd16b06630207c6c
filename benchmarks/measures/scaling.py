"""(g) One queue with a growing number of worker processes: rate, share of each process, deadlocks."""

from __future__ import annotations

from typing import Any

from benchmarks.bench import Bench, alternate
from benchmarks.fill import OURS, REFERENCE
from benchmarks.stats import digits, ratios, spread
from benchmarks.target import rows


def run(bench: Bench) -> dict[str, Any]:
    """One entry per number of processes."""
    record: dict[str, Any] = {}
    for count in bench.plan.scaling:
        bench.say(f"scaling: {count} process(es)")
        contestants = {"jobqueue": lambda n=count: _ours(bench, n), "raw, 100": lambda n=count: _raw(bench, n)}
        found = alternate(contestants, max(1, bench.plan.rounds // 2))
        ours = found["jobqueue"]
        rates = {name: [one["rate"] for one in values] for name, values in found.items()}
        record[str(count)] = {
            "jobqueue": {
                "per_second": spread(rates["jobqueue"]),
                "ratio": ratios(rates["jobqueue"], rates["raw, 100"]),
                "smallest_share": spread([one["smallest_share"] for one in ours]),
                "deadlocks_per_10k": spread([one["deadlocks"] for one in ours]),
            },
            "raw, 100": {
                "per_second": spread(rates["raw, 100"]),
                "deadlocks_per_10k": spread([one["deadlocks"] for one in found["raw, 100"]]),
            },
        }
    return record


def _ours(bench: Bench, count: int) -> dict[str, Any]:
    before = bench.target.counters(bench.connection)
    rate = bench.drain_ours(bench.plan.scaling_jobs, count)
    after = bench.target.counters(bench.connection)
    sql = f"SELECT last_worker, COUNT(*) FROM {OURS} WHERE status = 2 GROUP BY last_worker"
    shares = [int(number) for _, number in rows(bench.connection, sql)]
    # As a part of the equal share; a worker that got no job is not in the list.
    smallest = min(shares) * count / sum(shares) if len(shares) == count else 0.0
    deadlocks = _deadlocks(before, after, sum(shares))
    return {"rate": rate, "smallest_share": digits(smallest), "deadlocks": deadlocks}


def _raw(bench: Bench, count: int) -> dict[str, Any]:
    before = bench.target.counters(bench.connection)
    rate = bench.drain_reference(bench.plan.scaling_jobs, count)
    after = bench.target.counters(bench.connection)
    done = bench.finished(REFERENCE)()
    return {"rate": rate, "deadlocks": _deadlocks(before, after, done)}


def _deadlocks(before: dict[str, int] | None, after: dict[str, int] | None, jobs: int) -> float | None:
    if before is None or after is None:
        return None
    return digits((after["deadlocks"] - before["deadlocks"]) * 10_000 / max(1, jobs))
