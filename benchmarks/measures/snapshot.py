"""(e) The same claim while another session keeps an old snapshot open and thousands of jobs finish."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.bench import Bench
from benchmarks.fill import OURS, REFERENCE
from benchmarks.measures.growth import BATCH, timed
from benchmarks.stats import digits

EDGE = 20  # claims at the beginning and at the end that are compared


def run(bench: Bench) -> dict[str, Any]:
    """Milliseconds per claim of 100 at the beginning and at the end, ours and raw in turn."""
    from jobqueue import transitions
    from jobqueue.transitions.claiming.claimer import Claimer

    claimer = Claimer("bench", "default")
    jobs = bench.plan.snapshot_jobs
    # Some jobs are left, so that the last claims are as full as the first.
    bench.load(OURS, jobs + 10 * BATCH)
    bench.load(REFERENCE, jobs + 10 * BATCH)
    reference = bench.reference()
    snapshot = bench.target.open_snapshot()
    costs: dict[str, list[float]] = {"jobqueue": [], "raw": []}
    for _ in range(jobs // BATCH):
        ours = timed(1, lambda: claimer.claim("bench", BATCH, lease_seconds=60), transitions.ack_many)
        raw = timed(1, lambda: reference.claim(BATCH), lambda got: reference.finish(*got))
        costs["jobqueue"].append(ours["claim"])
        costs["raw"].append(raw["claim"])
    snapshot.rollback()
    snapshot.close()
    reference.connection.close()
    return {"finished": jobs, **{name: _edges(values) for name, values in costs.items()}}


def _edges(values: list[float]) -> dict[str, Any]:
    edge = max(1, min(EDGE, len(values) // 4))
    # The first claim also reads the schema and fills caches.
    first, last = median(values[1 : edge + 1]), median(values[-edge:])
    points = [digits(median(values[i : i + edge])) for i in range(0, len(values), max(edge, len(values) // 20))]
    return {"first_ms": digits(first), "last_ms": digits(last), "ratio": digits(last / first), "course_ms": points}
