"""python -m benchmarks.peers.run ADAPTER version|reset|enqueue N|work N|watch|arrive SECONDS

Runs in the interpreter that has the peer. An adapter module has DISTRIBUTION (the package whose version is shown),
reset(), enqueue(number), worker(processes) -> command line, and, on a database, finished(): how many jobs are done and
committed. Without finished() every started job counts, because such a broker deletes jobs when they start.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks import effects


def main(name: str, action: str, *arguments: str) -> None:
    """Run one action and print JSON as the last line."""
    adapter: Any = importlib.import_module(f"benchmarks.peers.{name}")
    if action == "version":
        try:
            print(json.dumps(version(adapter.DISTRIBUTION)))
        except PackageNotFoundError:
            sys.exit(f"{adapter.DISTRIBUTION} is not installed")
    elif action == "reset":
        adapter.reset()
        print("null")
    elif action == "work":
        command = adapter.worker(int(arguments[0]))
        os.execv(command[0], command)
    elif action == "enqueue":
        print(json.dumps({"seconds": enqueue(adapter, int(arguments[0]))}))
    elif action == "watch":
        watch(adapter.finished)
    elif action == "arrive":
        print(json.dumps(arrive(adapter, float(arguments[0]))))


def enqueue(adapter: Any, jobs: int) -> float:
    """Enqueue `jobs` jobs one by one. Returns the seconds, without the first call, which connects."""
    adapter.enqueue(0)
    begun = time.perf_counter()
    for number in range(1, jobs + 1):
        adapter.enqueue(number)
    return time.perf_counter() - begun


def watch(finished: Any) -> None:
    """Print a count every 50 ms."""
    while True:
        before = time.monotonic()
        print(finished(), flush=True)
        time.sleep(max(0.05, 10 * (time.monotonic() - before)))


def arrive(adapter: Any, seconds: float) -> dict[int, float]:
    """Enqueue ten jobs a second. Returns when each call returned; ends when all have started, or 3 s later."""
    number = 0
    deadline = time.monotonic() + 30
    while not effects.count() and time.monotonic() < deadline:
        adapter.enqueue(number := number + 1)
        time.sleep(0.5)
    committed = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(random.uniform(0.05, 0.15))
        adapter.enqueue(number := number + 1)
        committed[number] = time.monotonic()
    deadline = time.monotonic() + 3
    while effects.count() < number and time.monotonic() < deadline:
        time.sleep(0.05)
    return committed


if __name__ == "__main__":
    main(*sys.argv[1:])
