"""Jobs that this process has opened a moment ago: they are claimed at once, although others wait for a thread."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping

#: between two such claims: each takes few jobs, and costs as much as one of many
BETWEEN_SECONDS = 0.03


class OpenedJobs:
    """How many were opened, by queue. A slot that was freed here is free for nobody else until its job is claimed.

    The settler and the claimer open jobs; the claimer takes the numbers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._next = 0.0

    def add(self, counts: Mapping[str, int]) -> None:
        """Note jobs that were opened."""
        with self._lock:
            self._counts.update(counts)

    def take(self, most: int) -> dict[str, int]:
        """Up to `most` by queue, and forget all; {} if there are none, or it is too soon."""
        if not self._counts or time.monotonic() < self._next:
            return {}
        with self._lock:
            found, self._counts = self._counts, Counter()
        self._next = time.monotonic() + BETWEEN_SECONDS
        return {queue: min(count, most) for queue, count in found.items()}

    def forget(self) -> None:
        """Forget all: a claim has just asked for as many jobs as there is room for."""
        if self._counts:
            with self._lock:
                self._counts = Counter()

    @property
    def wait_seconds(self) -> float | None:
        """How soon take() is to be called; None: not before more jobs are opened."""
        return max(0.0, self._next - time.monotonic()) if self._counts else None
