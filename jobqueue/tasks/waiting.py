"""result.wait(): looks at a job until it has ended."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.durations import to_seconds
from jobqueue.exceptions import InsideTransaction, WaitTimeout

#: between two looks: longer for jobs that take longer
_LEAST_SECONDS, _MOST_SECONDS, _GROWTH = 0.02, 1.0, 1.5


def wait_for(result: Any, timeout_seconds: float | timedelta | str | None) -> None:
    """Refresh `result` until its job has ended. Raises WaitTimeout, InsideTransaction, InvalidValue, InvalidType."""
    limit = None if timeout_seconds is None else to_seconds(timeout_seconds, "timeout_seconds", zero=True)
    # Not time.monotonic(), which libraries stop that freeze the clock in tests: the wait would never end.
    until, pause = None if limit is None else time.clock_gettime(time.CLOCK_MONOTONIC) + limit, _LEAST_SECONDS
    while True:
        result.refresh()
        if result.is_finished:
            return
        using = result.task.get_backend().database
        if in_open_transaction(using):
            raise InsideTransaction(
                f"wait() was called inside a transaction on {using!r}: job {result.id} has not ended, and its end "
                "could not be seen there. Nothing was written; wait after the commit."
            )
        left = _MOST_SECONDS if until is None else until - time.clock_gettime(time.CLOCK_MONOTONIC)
        if left <= 0:
            raise WaitTimeout(
                f"job {result.id} has not ended after {limit:g} s: it is {result.status}. It goes on; wait again, or "
                "cancel it."
            )
        time.sleep(min(pause, left))
        pause = min(pause * _GROWTH, _MOST_SECONDS)
