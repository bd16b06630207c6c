"""python -m tests.proofs.schedules.produce PER_SECOND SECONDS JOB_SECONDS FILE: add jobs at this rate, each by itself.

Prints "begun" when it is ready, begins with the next line of standard input, and writes to FILE as JSON: how long each
enqueue took, and the longest statement. An enqueue that is late is made at once: the rate is offered, not asked for.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import django


@contextmanager
def longest_statement(connection):
    """A list with the seconds of the longest statement of the block."""
    found = [0.0]

    def measure(execute, sql, params, many, context):
        begun = time.monotonic()
        try:
            return execute(sql, params, many, context)
        finally:
            found[0] = max(found[0], time.monotonic() - begun)

    with connection.execute_wrapper(measure):
        yield found


def main(per_second: float, seconds: float, job_seconds: float, path: str) -> None:
    """Add jobs for so many seconds."""
    django.setup()
    from django.db import connection

    from tests.proofs.schedules.tasks import brief

    connection.ensure_connection()
    print("begun", flush=True)
    sys.stdin.readline()
    took = []
    with longest_statement(connection) as longest:
        begun = time.monotonic()
        while (now := time.monotonic()) < begun + seconds:
            if (wait := begun + len(took) / per_second - now) > 0:
                time.sleep(wait)
            at = time.monotonic()
            brief.enqueue(job_seconds)
            took.append(time.monotonic() - at)
    Path(path).write_text(json.dumps({"took": took, "longest": longest[0]}))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:4]), sys.argv[4])
