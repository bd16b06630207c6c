"""Measure how far retries multiply the calls of jobs, and let retries wait that would be too many of all runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from jobqueue.durations import format_seconds
from jobqueue.failures import FailureCause, is_permanent
from jobqueue.failures.nested import ONCE, Nested, nested_tries
from jobqueue.transitions import Lease
from jobqueue.transitions.causes import cause_of
from jobqueue.transitions.first_due import is_first_run
from jobqueue.worker.child.retry_limit import LOOK_HIGH_SECONDS, RetryLimit
from jobqueue.worker.run.attempt import Ending, Outcome
from jobqueue.worker.run.retrying import needs
from jobqueue.worker.shared.retry_counts import RetryCounts, TaskRuns

logger = logging.getLogger("jobqueue.worker")

_RAN = {Ending.OK, Ending.FINISHED, Ending.FAILED, Ending.DISCARDED}
#: how many names of dependencies, and of tasks with them, are kept: rows may name any
_LIMITS_MAX, _RUNS_MAX = 100, 1000


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
        self._runs: dict[tuple[str | None, str], TaskRuns] = {}
        # The claimer sifts while the settler counts.
        self._lock = threading.Lock()

    def sift(self, leases: list[Lease]) -> tuple[list[Lease], dict[tuple[float, str], list[Lease]]]:
        """Return the leases that may run now, and the others by the seconds for which to give them back, and why."""
        if not self._limits:
            return leases, {}
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
        return free, waiting

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
        runs = self._of((dependency, _name_of(lease)))
        runs.held += 1
        runs.held_us += int(wait * 1e6)
        return wait, f"{dependency} fails: its retries wait for their turn"

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Count how runs ended, before they are written, and lengthen the delays of retries that have to wait."""
        last: BaseException | None = None
        nested = ONCE
        for outcome in outcomes:
            dependency, error = outcome.lease.dependency or outcome.dependency, outcome.error
            if error is None and dependency is None and not self._runs:
                continue  # the fast path: a project without dependencies, and without failures so far
            key = dependency, _name_of(outcome.lease)
            if (error is None and dependency is None and key not in self._runs) or outcome.ending not in _RAN:
                continue
            if error is not None and error is not last:
                last, nested = error, nested_tries(error)
            runs = self._count(key, outcome, ONCE if error is None else nested)
            # A job that has failed its own lease says nothing about the dependency.
            if dependency is not None and (error is not None or outcome.succeeded):
                with self._lock:
                    self._limit(dependency, outcome, runs)

    def _count(self, key: tuple[str | None, str], outcome: Outcome, nested: Nested) -> TaskRuns:
        runs = self._of(key)
        if is_first_run(outcome.lease):
            runs.first_runs += 1
        else:
            runs.retries += 1
        runs.calls += nested.tries
        if nested.tries > max(runs.tries_max, 1):
            if not any(other.tries_max > 1 for other in self._same(runs)):
                self._report_nested(key[1], outcome, nested)
            runs.tries_max = nested.tries
        return runs

    def _of(self, key: tuple[str | None, str]) -> TaskRuns:
        runs = self._runs.get(key)
        if runs is None:
            if len(self._runs) >= _RUNS_MAX:
                del self._runs[next(iter(self._runs))]
            runs = self._runs[key] = self._counts.runs(*key)
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
            runs.held += 1
            runs.held_us += int(hold * 1e6)

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


class DeliveryCounts:
    """Counts the deliveries of events by topic, as the runs of "outbox TOPIC", from the first repeated one on."""

    def __init__(self, counts: RetryCounts) -> None:
        self._counts = counts
        self._topics: dict[str, TaskRuns] = {}
        # A relay whose delivery hangs is replaced by another thread.
        self._lock = threading.Lock()

    def __call__(self, topic: str, attempt: int) -> None:
        """Count one run."""
        runs = self._topics.get(topic)
        if runs is None and attempt == 1:
            return
        with self._lock:
            if runs is None:
                runs = self._topics[topic] = self._counts.runs(None, f"outbox {topic}")
                # The earlier deliveries of this event were not counted.
                runs.first_runs += 1
                runs.retries += attempt - 1
                runs.calls += attempt
                return
            runs.first_runs += attempt == 1
            runs.retries += attempt > 1
            runs.calls += 1
