"""The deadline of a caller that waits for a lock, with the pauses between its tries."""

from __future__ import annotations

import time

from jobqueue.backoff import Backoff

_PAUSES = Backoff(base_seconds=0.004, cap_seconds=0.15, jitter=1 / 3)


class Deadline:
    """A wait of `timeout_seconds` that begins now: None waits for ever, 0 tries once."""

    def __init__(self, timeout_seconds: float | None) -> None:
        # Not time.monotonic(), which libraries stop that freeze the clock in tests: the wait would never end.
        self._begun = time.clock_gettime(time.CLOCK_MONOTONIC)
        self._ends = None if timeout_seconds is None else self._begun + timeout_seconds
        #: tries that failed
        self.failures = 0

    def waited_seconds(self) -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC) - self._begun

    def left_seconds(self) -> float | None:
        """The time that is left, at least 0; None: without limit."""
        return None if self._ends is None else max(0.0, self._ends - time.clock_gettime(time.CLOCK_MONOTONIC))

    def pause_seconds(self) -> float | None:
        """Count a failed try; the time to sleep before the next one, up to 0.15 s; None: give up."""
        self.failures += 1
        left = self.left_seconds()
        if left == 0:
            return None
        pause = _PAUSES.delay_seconds(self.failures)
        return pause if left is None else min(pause, left)
