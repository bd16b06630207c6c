"""How fast retries of one dependency may begin in a process while too many of its runs fail."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from jobqueue.conf import load
from jobqueue.failures.dependencies import settings_of
from jobqueue.worker.shared.retry_counts import DependencyRates, RetryCounts

# Rates are means over this time, and at least over LEAST_SECONDS.
WINDOW_SECONDS, BUCKET_SECONDS, LEAST_SECONDS = 20.0, 2.0, 5.0
#: retries that a worker may always begin in a second, for each dependency: a quiet queue has no share to speak of
FLOOR_PER_SECOND = 1.0
#: a retry without a turn looks again after as long as the runs have failed, within these bounds, or after half of that
LOOK_LOW_SECONDS, LOOK_HIGH_SECONDS = 60.0, 300.0
# Turns that nobody took can be taken later, but not more than those of this time.
UNUSED_SECONDS = 1.0


@dataclass(slots=True)
class _Bucket:
    begun: float
    runs: int = 0
    first: int = 0
    failures: int = 0


class RetryLimit:
    """The turns of the retries of one dependency, from the moment when too many runs fail until enough succeed.

    While more than RETRY_SHARE of the runs fail because of the dependency, there are so many turns per second that
    retries are that share of the runs, and at least FLOOR_PER_SECOND in a worker; the processes that run such jobs have
    the same number of them. If less than the share fails, retries cannot be more than the share: then `on` is False.
    """

    def __init__(self, dependency: str, counts: RetryCounts, everyone: Sequence[RetryCounts], now: float) -> None:
        self._dependency = dependency
        # Without a place in the shared memory, this process counts alone.
        self._mine = counts.rates(dependency) or DependencyRates()
        self._others = [each for each in everyone if each is not counts]
        self._places: list[DependencyRates | None] = [None] * len(self._others)
        self._buckets: deque[_Bucket] = deque()
        self._since = self.used_at = now
        self._failing_since: float | None = None
        self._next_turn = self._next_begin = now
        self._turn_seconds = 0.0

    @property
    def on(self) -> bool:
        """Whether retries have to wait, by the last look()."""
        return self._failing_since is not None

    @property
    def share(self) -> float:
        """Which part of the runs may be retries."""
        return settings_of(self._dependency, load().dependencies).retry_share

    def ran(self, now: float, *, first: bool, failed: bool) -> None:
        """Count a run; `failed`: because of the dependency."""
        fresh = self._forget(now)
        if not self._buckets:
            self._since = now
        if not self._buckets or self._buckets[-1].begun <= now - BUCKET_SECONDS:
            self._buckets.append(_Bucket(now))
            fresh = True
        bucket = self._buckets[-1]
        bucket.runs += 1
        bucket.first += first
        bucket.failures += failed
        self.used_at = now
        if fresh or failed or self.on:
            self._publish(now)

    def look(self, now: float) -> bool:
        """Decide by the runs of all processes of the worker whether retries have to wait; returns `on`."""
        if self._forget(now):
            self._publish(now)
        first, runs, failures, processes = 0.0, 0.0, 0.0, 0
        for rates in self._known():
            if rates is self._mine or now - rates.updated_at < WINDOW_SECONDS:
                first, runs, failures = first + rates.first_rate, runs + rates.run_rate, failures + rates.failure_rate
                processes += 1
        share = self.share
        self._turn_seconds = processes / max(FLOOR_PER_SECOND, first * share / (1 - share))
        if self._failing_since is None and failures > max(FLOOR_PER_SECOND, share * runs):
            self._failing_since = self._next_turn = self._next_begin = now
        elif self._failing_since is not None and runs and failures <= share * runs:
            self._failing_since = None
        return self.on

    def may_begin(self, now: float) -> bool:
        """Whether a retry may begin now; it takes its turn."""
        self._next_begin = max(self._next_begin, now - UNUSED_SECONDS)
        if self._next_begin > now:
            return False
        self._next_begin += self._turn_seconds
        return True

    def wait_seconds(self, now: float) -> tuple[float, bool]:
        """How long the next retry has to wait: until its turn (and True), or until it looks for one again (False)."""
        if self._failing_since is None:
            return 0.0, True
        longest = min(max(now - self._failing_since, LOOK_LOW_SECONDS), LOOK_HIGH_SECONDS)
        self._next_turn = max(self._next_turn, now)
        wait = self._next_turn - now
        if wait > longest:
            # At random, so that they do not all come at once when the dependency is back.
            return random.uniform(longest / 2, longest), False
        self._next_turn += self._turn_seconds
        return wait, True

    def _forget(self, now: float) -> bool:
        before = len(self._buckets)
        while self._buckets and self._buckets[0].begun <= now - WINDOW_SECONDS:
            self._buckets.popleft()
        return len(self._buckets) != before

    def _publish(self, now: float) -> None:
        mine, buckets = self._mine, self._buckets
        begun = max(self._since, buckets[0].begun) if buckets else now
        seconds = max(LEAST_SECONDS, min(now - begun, WINDOW_SECONDS))
        mine.first_rate = sum(bucket.first for bucket in buckets) / seconds
        mine.run_rate = sum(bucket.runs for bucket in buckets) / seconds
        mine.failure_rate = sum(bucket.failures for bucket in buckets) / seconds
        if buckets:
            mine.updated_at = now

    def _known(self) -> list[DependencyRates]:
        """The rates of the processes that have run jobs of the dependency, with this one."""
        for number, each in enumerate(self._others):
            if self._places[number] is None:
                self._places[number] = each.known_rates(self._dependency)
        return [self._mine, *(place for place in self._places if place is not None)]
