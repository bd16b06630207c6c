"""python -m benchmarks.reference_worker: claim and finish jobs until stopped."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from benchmarks.effects import effect
from benchmarks.reference import Reference
from benchmarks.target import from_environment

RESULT = json.dumps({"text": "x" * 188})
_AGAIN = {1213, 1205, 1020}


def main() -> None:
    """Run the loop of a minimal worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--each", action="store_true", help="one committed ack per job")
    parser.add_argument("--result", action="store_true", help="store 200 bytes")
    parser.add_argument("--stamp", action="store_true", help="write down when each job started")
    parser.add_argument("--poll", type=float, default=0.005)
    options = parser.parse_args()
    reference = Reference(from_environment())
    while True:
        try:
            if not work(reference, options):
                time.sleep(options.poll)
        except Exception as error:
            if not transient(error):
                raise
            reference.connection.rollback()


def work(reference: Reference, options: Any) -> int:
    """Claim and finish one batch. Returns the number of jobs."""
    ids, token = reference.claim(options.batch)
    if options.stamp:
        for job_id in ids:
            effect(job_id)
    result = RESULT if options.result else None
    if options.each:
        for job_id in ids:
            reference.finish([job_id], token, result)
    elif ids:
        reference.finish(ids, token, result)
    return len(ids)


def transient(error: Exception) -> bool:
    """Whether the error is transient: a deadlock or a busy database."""
    return bool(error.args and error.args[0] in _AGAIN) or getattr(error, "sqlstate", "") in ("40001", "40P01")


if __name__ == "__main__":
    # The parent sends SIGTERM to end this process.
    os.environ.setdefault("BENCH_EFFECTS", os.devnull)
    main()
