"""python -m benchmarks.side JOBS: measure the package of this folder whenever a line on stdin asks for it.

The answer to "enqueue" or "drain" is a line with the jobs a second. benchmarks.check runs one such process per version.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.fill import OURS, empty
from benchmarks.measures.enqueue import timed
from benchmarks.plan import QUICK
from benchmarks.target import from_environment


def main(jobs: int) -> None:
    """Answer until stdin ends."""
    import django

    django.setup()
    from jobqueue import enqueue

    def enqueued() -> float:
        empty(bench.target, bench.connection, OURS)
        return timed(500, lambda n: enqueue("bench", {"args": [n], "kwargs": {}}))

    def drained() -> float | None:
        return bench.drain_ours(jobs)

    with tempfile.TemporaryDirectory(prefix="jobqueue-side-") as folder:
        bench = Bench(from_environment(), replace(QUICK, drain_seconds=60.0), Path(folder))
        bench.start()
        try:
            for line in sys.stdin:
                print({"enqueue": enqueued, "drain": drained}[line.strip()](), flush=True)
        finally:
            bench.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
