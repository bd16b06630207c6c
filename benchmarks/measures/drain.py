"""(b) How fast a full queue is drained, counted in committed finishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench, alternate
from benchmarks.stats import ratios, spread

Contestants = dict[str, Callable[[], Any]]


def run(bench: Bench) -> dict[str, Any]:
    """One entry per situation and number of workers."""
    plan = bench.plan
    record: dict[str, Any] = {}
    for count in plan.worker_counts:
        bench.say(f"drain, {count} worker(s)")
        found = alternate(_contestants(bench, count), plan.rounds)
        record[f"{count} worker" + "s" * (count > 1)] = compared(found)
    return record


def _contestants(bench: Bench, count: int) -> Contestants:
    plan, jobs, ours, raw = bench.plan, bench.plan.drain_jobs, bench.drain_ours, bench.drain_reference
    answer = "benchmarks.tasks.answer"
    found: Contestants = {
        "jobqueue": lambda: ours(jobs, count),
        "raw, 100": lambda: raw(jobs, count),
        "jobqueue, results": lambda: ours(jobs, count, task=answer),
        "raw, 100, results": lambda: raw(jobs, count, "--result"),
        "jobqueue, delayed": lambda: ours(jobs, count, delayed=plan.delayed_jobs),
        "raw, 100, delayed": lambda: raw(jobs, count, delayed=plan.delayed_jobs),
        "jobqueue, one ack each": lambda: ours(plan.each_jobs, count, "--queues", "bench_each", queue="bench_each"),
        "raw, one ack each": lambda: raw(plan.each_jobs, count, "--each"),
    }
    for peer in bench.peers if count == 1 else ():
        found[peer.name] = lambda peer=peer: peer.attempt(lambda: peer.drain(bench, plan.peer_jobs, count))  # type: ignore[misc]
    return found


#: contestant -> the contestant it is compared with, in the same round
AGAINST = {
    "jobqueue": "raw, 100",
    "jobqueue, results": "raw, 100, results",
    "jobqueue, delayed": "jobqueue",
    "raw, 100, delayed": "raw, 100",
    "jobqueue, one ack each": "raw, one ack each",
}


def compared(found: dict[str, list[Any]]) -> dict[str, Any]:
    """The rates, their ratios to the reference, and for peers how many times faster ours is."""
    record: dict[str, Any] = {}
    for name, values in found.items():
        entry: dict[str, Any] = {"per_second": spread(values)}
        if name in AGAINST:
            entry |= {"against": AGAINST[name], "ratio": ratios(values, found[AGAINST[name]])}
        elif not name.startswith("raw"):
            entry |= {"ours_is": ratios(found["jobqueue"], values)}
        record[name] = entry
    return record
