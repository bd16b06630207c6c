"""python -m benchmarks.database: measure one database, and write the record as JSON to the file BENCH_OUT."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.peers import available
from benchmarks.plan import Plan, from_json
from benchmarks.target import from_environment


def main() -> None:
    """Set Django up for this database and run the plan."""
    import django

    django.setup()
    plan = from_json(json.loads(os.environ["BENCH_PLAN"]))
    record = measure(plan)
    Path(os.environ["BENCH_OUT"]).write_text(json.dumps(record))


def measure(plan: Plan) -> dict[str, Any]:
    """Run every measure of the plan. An error is recorded and does not stop the other measures."""
    target = from_environment()
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        bench = Bench(target, plan, Path(folder))
        bench.start()
        try:
            bench.peers, versions = available(target, ",".join(plan.peers), Path(folder))
            record: dict[str, Any] = {"server": target.describe(), "peers": versions, "measures": {}, "errors": {}}
            for name in plan.only:
                _one(bench, name, record)
            record["errors"] |= {peer.name: peer.broken for peer in bench.peers if peer.broken}
        finally:
            bench.close()
    return record


def _one(bench: Bench, name: str, record: dict[str, Any]) -> None:
    bench.say(name)
    begun = time.monotonic()
    try:
        record["measures"][name] = importlib.import_module(f"benchmarks.measures.{name}").run(bench)
    except Exception as error:
        traceback.print_exc()
        record["errors"][name] = f"{type(error).__name__}: {error}"[:500]
    bench.say(f"{name} took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
