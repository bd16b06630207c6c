"""Measure how far retries multiply the calls of jobs, and let retries wait that would be too many of all runs.

A RetryLimit is the token bucket of one dependency: its tokens are turns, which retries take to begin. A RetryBudget
counts runs, has the limits of a process, and holds the retries that have no turn.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobqueue.base.durations import format_seconds
from jobqueue.conf import load
from jobqueue.failures import FailureCause, is_permanent
from jobqueue.failures.dependencies import settings_of
from jobqueue.failures.nested import ONCE, Nested, nested_tries
from jobqueue.producer.life import is_first_run
from jobqueue.transitions import Lease
from jobqueue.transitions.failing import cause_of
from jobqueue.worker.child.sifting import Sifted
from jobqueue.worker.run.attempt import Ending, Outcome, needs
from jobqueue.worker.shared.counters import DependencyRates, RetryCounts, TaskRuns

logger = logging.getLogger("jobqueue.worker")

_RAN = {Ending.OK, Ending.FINISHED, Ending.FAILED, Ending.REQUESTED}
#: how many names of dependencies are kept: rows may name any
_LIMITS_MAX = 100

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


class RetryBudget:
    """Counts runs by task, and holds back retries of a dependency while too many runs are retries.

    While more than RETRY_SHARE of the runs fail because of the dependency, a retry waits, if its back-off is shorter,
    for its turn: ended() gives it a later one, and sift() lets it begin only if there is a turn. One without a turn
    looks again after a few minutes at the latest, so that it runs soon after the dependency is back. First attempts are
    not held. A retry that waits uses no attempt.
    """

    def __init__(
        self,
        counts: RetryCounts,
        everyone: Sequence[RetryCounts],
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts, self._everyone, self._name, self._clock = counts, everyone, name, clock
        self._limits: dict[str, RetryLimit] = {}
        # The claimer sifts while the settler counts.
        self._lock = threading.Lock()

    def sift(self, leases: list[Lease]) -> Sifted:
        """Let retries wait that have no turn."""
        if not self._limits:
            return Sifted(leases)
        free: list[Lease] = []
        waiting: dict[tuple[float, str], list[Lease]] = defaultdict(list)
        with self._lock:
            now = self._clock()
            looking: dict[str, float] = {}  # together, so that one transaction gives them back
            for lease in leases:
                wait, why = self._wait(lease, now, looking) if not is_first_run(lease) else (0.0, "")
                if wait > 0:
                    waiting[wait, why].append(lease)
                else:
                    free.append(lease)
        return Sifted(free, (), waiting)

    def _wait(self, lease: Lease, now: float, looking: dict[str, float]) -> tuple[float, str]:
        """The seconds for which to give back a claimed retry, and why; 0 if it may run."""
        dependency, slack = needs(lease)
        limit = None if dependency is None else self._limits.get(dependency)
        if limit is None or dependency is None or not self._look(dependency, limit, now):
            return 0.0, ""
        if slack <= 0 or limit.may_begin(now):
            return 0.0, ""
        wait, found = limit.wait_seconds(now)
        wait = math.ceil(wait) if found else looking.setdefault(dependency, wait)
        wait = min(max(wait, 1.0), slack)
        self._counts.runs(dependency, _name_of(lease)).hold(wait)
        return wait, f"{dependency} fails: its retries wait for their turn"

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Count how runs ended, before they are written, and lengthen the delays of retries that have to wait."""
        last: BaseException | None = None
        nested = ONCE
        for outcome in outcomes:
            dependency, error = outcome.lease.dependency or outcome.dependency, outcome.error
            if error is None and dependency is None and not self._counts.counts_any:
                continue  # the fast path: a project without dependencies, and without failures so far
            name = _name_of(outcome.lease)
            if error is None and dependency is None and not self._counts.counts(None, name):
                continue
            if outcome.ending not in _RAN or outcome.gives_back:
                continue
            if error is not None and error is not last:
                last, nested = error, nested_tries(error)
            runs = self._count(dependency, name, outcome, ONCE if error is None else nested)
            # A job that has failed its own lease says nothing about the dependency.
            if dependency is not None and (error is not None or outcome.succeeded):
                with self._lock:
                    self._limit(dependency, outcome, runs)

    def _count(self, dependency: str | None, task: str, outcome: Outcome, nested: Nested) -> TaskRuns:
        runs = self._counts.runs(dependency, task)
        runs.ran(first=is_first_run(outcome.lease), calls=nested.tries)
        if nested.tries > max(runs.tries_max, 1):
            if not any(other.tries_max > 1 for other in self._same(runs)):
                self._report_nested(task, outcome, nested)
            runs.tries_max = nested.tries
        return runs

    def _same(self, runs: TaskRuns) -> list[TaskRuns]:
        """The counts of the same task in all processes of the worker."""
        return [other for each in self._everyone for other in each.all_runs() if other.task == runs.task]

    def _report_nested(self, task: str, outcome: Outcome, nested: Nested) -> None:
        attempts = outcome.lease.max_attempts
        logger.warning(
            "%s: retries are nested: one attempt of %s made %d calls (%s), so its %d attempts make up to %d. Let one "
            "layer retry: turn off the retries of the library, or set max_attempts=1",
            self._name,
            task,
            nested.tries,
            ", ".join(nested.libraries),
            attempts,
            attempts * nested.tries,
        )

    def _limit(self, dependency: str, outcome: Outcome, runs: TaskRuns) -> None:
        now, lease, error = self._clock(), outcome.lease, outcome.error
        limit = self._limit_of(dependency, now)
        failed = error is not None and outcome.ending is Ending.FAILED
        failed = failed and cause_of(error, lease.task) == FailureCause.DEPENDENCY  # type: ignore[arg-type]
        limit.ran(now, first=is_first_run(lease), failed=failed)
        if not failed and not limit.on:
            return
        self._look(dependency, limit, now)
        again = outcome.retry and lease.attempt < lease.max_attempts and not is_permanent(error)  # type: ignore[arg-type]
        if not (failed and again and limit.on):
            return
        delay = outcome.chosen_delay()
        hold = min(limit.wait_seconds(now)[0] - delay, outcome.slack_seconds(delay))
        if hold > 0:
            outcome.delay_seconds = delay + hold
            runs.hold(hold)

    def _limit_of(self, dependency: str, now: float) -> RetryLimit:
        limit = self._limits.get(dependency)
        if limit is None:
            if len(self._limits) >= _LIMITS_MAX:
                oldest = min(self._limits, key=lambda name: (self._limits[name].on, self._limits[name].used_at))
                del self._limits[oldest]
            limit = self._limits[dependency] = RetryLimit(dependency, self._counts, self._everyone, now)
        return limit

    def _look(self, dependency: str, limit: RetryLimit, now: float) -> bool:
        """Whether its retries have to wait now; logs a change."""
        before = limit.on
        if limit.look(now) == before:
            return before
        if limit.on:
            words = "more than %.0f %% of the runs that need %s fail because of it: their retries wait for their turn"
            logger.warning(f"%s: {words}, first attempts go on", self._name, 100 * limit.share, dependency)
        else:
            words = "%s answers again: its retries wait for their back-off only, those that waited begin within %s"
            longest = format_seconds(LOOK_HIGH_SECONDS)
            logger.info(f"%s: {words}", self._name, dependency, longest)
        return limit.on


def _name_of(lease: Lease) -> str:
    return lease.task or f"handler of {lease.queue}"
