"""(h) Locks: ours against bare GET_LOCK or pg_advisory_lock, and against redis-py's lock, on one key."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks.bench import Bench, alternate
from benchmarks.lock_kinds import kinds
from benchmarks.stats import ratios, spread
from benchmarks.workers import ROOT

BARE = {"mysql": "bare GET_LOCK", "mariadb": "bare GET_LOCK", "postgres": "bare pg_advisory_lock"}
AGAINST = {"mutex": "bare", "lease_lock": "bare", "named_lock": "bare", "redis_lock": "redis-py"}


def run(bench: Bench) -> dict[str, Any]:
    """Locks acquired per second, by number of processes and contestant; SQLite has no such lock of its own."""
    wanted = kinds(bench.target.kind)
    titles = {"bare": BARE.get(bench.target.kind, ""), "redis-py": "redis-py's Lock"}
    record: dict[str, Any] = {}
    for processes in bench.plan.lock_processes:
        found = alternate({kind: partial(held, bench, kind, processes) for kind in wanted}, bench.plan.rounds)
        entries: dict[str, Any] = {}
        for kind, rates in found.items():
            entry: dict[str, Any] = {"per_second": spread(rates)}
            if AGAINST.get(kind) in found:
                entry |= {"against": titles[AGAINST[kind]], "ratio": ratios(rates, found[AGAINST[kind]])}
            entries[titles.get(kind, kind)] = entry
        record["1 process" if processes == 1 else f"{processes} processes"] = entries
    return record


def held(bench: Bench, kind: str, processes: int) -> float:
    """How often per second the processes together acquired the lock."""
    seconds = bench.plan.lock_seconds
    command = [sys.executable, "-m", "benchmarks.lock_kinds", kind, str(processes), str(seconds)]
    # With the setting that names the Redis server.
    env = {**os.environ, **bench.env}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout) / seconds
