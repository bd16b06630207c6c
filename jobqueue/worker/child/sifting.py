"""Which claimed jobs may not begin here: rules put them back before a thread takes them.

Each rule has a sift(leases), which returns a Sifted. They are that a worker knows the task (UnknownTasks), that the
circuit breaker of its dependency is closed (Breakers), and that retries of its dependency have a turn (RetryBudget).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from django.db import Error

from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.failures import summary
from jobqueue.gates import breaker, declared
from jobqueue.gates.breaker import BreakerOpen, Run
from jobqueue.gates.rules import forget_rules, rules
from jobqueue.tasks import registry
from jobqueue.tasks.versions import missing_version
from jobqueue.transitions import Lease
from jobqueue.worker.run.attempt import Ending, Outcome, is_outage, outages_of
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import ProcessSlot

#: how long a job stays due for other workers if its task is not known here, and how often this process looks meanwhile
LEFT_SECONDS, LOOK_SECONDS = 5.0, 1.0
#: then it is put back for so long: the shorter, the sooner a busy worker that knows the task finds it due again
UNKNOWN_SECONDS, UNKNOWN_MAX_SECONDS = 10.0, 60.0
_SNOOZES_PER_SECOND = 20  # of one process: many jobs are put back for longer
_snoozing = threading.Lock()
#: when jobs were put back
_snoozed_at: deque[float] = deque()


class Sifted(NamedTuple):
    """Claimed jobs by what becomes of them."""

    kept: list[Lease]  # they go on to the next rule
    due: Sequence[Lease] = ()  # given back at once: they stay due
    waiting: Mapping[tuple[float, str], list[Lease]] = MappingProxyType({})  # by seconds and reason of their snooze


class UnknownTasks:
    """Leaves jobs that this process cannot run to workers that can: it takes none of their time and of their jobs.

    Behind such jobs may be others that this process knows, so it cannot leave them for ever.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._look_at: dict[str, float] = {}

    def leaves(self, queue: str) -> bool:
        """Whether to ask `queue` later: it had nothing but jobs to leave a moment ago."""
        return bool(self._look_at) and self._clock() < self._look_at.get(queue, 0.0)

    def sift(self, leases: list[Lease]) -> Sifted:
        """Give back the leases of one queue whose task is not known here; their jobs stay due for others."""
        left = [lease for lease in leases if _is_new(lease) and not _can_run(lease)]
        if not left:
            return Sifted(leases)
        if len(left) == len(leases):
            now = self._clock()
            self._look_at = {queue: until for queue, until in self._look_at.items() if until > now}
            self._look_at[left[0].queue] = now + LOOK_SECONDS * random.uniform(0.8, 1.2)
        return Sifted([lease for lease in leases if lease not in left], left)


def _is_new(lease: Lease) -> bool:
    return (lease.locked_at - lease.run_at).total_seconds() < LEFT_SECONDS


def _can_run(lease: Lease) -> bool:
    if lease.task is None:
        return registry.find_handler(lease.queue) is not None
    task = registry.find_task(lease.task)
    if task is None:
        return False
    version = lease.payload.get("version") if isinstance(lease.payload, dict) else None
    return not isinstance(version, int) or missing_version(task, version) is None


def snooze_seconds(lease: Lease) -> float:
    """For how long to put back a job that this process cannot run: longer, the more there are and the older it is."""
    now, age = time.monotonic(), (lease.locked_at - lease.created_at).total_seconds()
    with _snoozing:
        _snoozed_at.append(now)
        while _snoozed_at[0] < now - UNKNOWN_MAX_SECONDS:
            _snoozed_at.popleft()
        many = len(_snoozed_at) / _SNOOZES_PER_SECOND
    return min(UNKNOWN_MAX_SECONDS, max(UNKNOWN_SECONDS + many, age / 10))


logger = logging.getLogger("jobqueue.worker")


class Breakers:
    """Tells the breakers how runs ended, and keeps jobs from starting whose breaker has opened since their claim.

    The claimer sifts while the settler tells; each uses its own connection.
    """

    def __init__(
        self,
        slot: ProcessSlot,
        pool: Pool,
        using: str,
        turn: AbstractContextManager[object],
        watched: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._slot, self._pool, self._using, self._turn, self._watched = slot, pool, using, turn, watched
        #: dependencies of which this process has recorded a failure, and no success since
        self._failing: set[str] = set()

    def sift(self, leases: list[Lease]) -> Sifted:
        """Give back the leases whose breaker is not closed. One statement if any has a dependency.

        The claim goes by what it knew a moment ago: without this look, an outage would use up the attempts of all jobs
        that are claimed within that time.
        """
        names = {name for name, _ in declared.needing(leases)}
        if not names:
            return Sifted(leases)
        declared.meet(names)
        look = partial(breaker.those_not_closed, names, self._using)
        found = retry_transient("breaker", look, using=self._using)
        if not found:
            return Sifted(leases)
        # The job threads must know a probe that was claimed just now.
        forget_rules()
        self._pool.rules = rules(self._using)
        shut = [
            lease
            for lease in leases
            if (name := declared.needed_by(lease)) in found and found[name].probe != (lease.job_id, lease.fence)
        ]
        # The next claim puts them behind the gate of their breaker.
        return Sifted([lease for lease in leases if lease not in shut], shut)

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Record how runs ended. A failed probe, and others that began while the breaker was open, use no attempt."""
        needing = declared.needing([outcome.lease for outcome in outcomes])
        names = {(lease.job_id, lease.fence): name for name, lease in needing}
        groups: dict[str, list[Outcome]] = {}
        for outcome in outcomes if names else ():
            dependency = names.get(outcome.key)
            if dependency is not None and (outcome.succeeded or is_outage(outcome)):
                groups.setdefault(dependency, []).append(outcome)
        if groups:
            outages = outages_of(outcomes)
            try:
                self._record(groups)
            finally:
                self._pool.unrecorded.recorded(outages)

    def _record(self, groups: Mapping[str, list[Outcome]]) -> None:
        for dependency, group in groups.items():
            try:
                with self._turn, self._watched():
                    self._tell(dependency, group)
            except (Error, DatabaseBusy) as error:
                logger.warning("the circuit breaker of %s was not told of %d runs: %s", dependency, len(group), error)
        # Jobs that were claimed ahead must not start if it has opened.
        self._pool.rules = rules(self._using)
        self._slot.breakers_open = len(self._pool.rules.breakers)

    def _tell(self, dependency: str, group: list[Outcome]) -> None:
        good = [outcome for outcome in group if outcome.succeeded]
        known = rules(self._using)
        if good and (dependency in self._failing | known.failing or dependency in known.breakers):
            now = time.monotonic()
            runs = [_run(outcome, now) for outcome in good]
            breaker.succeeded(dependency, runs, using=self._using, told_at=now)
            self._failing.discard(dependency)
        last = max((number for number, outcome in enumerate(group) if outcome.succeeded), default=-1)
        bad = group[last + 1 :]
        if not bad:
            return
        # One call that raised counts once, however many jobs were in it.
        calls: dict[int, list[Run]] = {}
        told_at = time.monotonic()
        for outcome in bad:
            calls.setdefault(id(outcome.error), []).append(_run(outcome, told_at))
        free = breaker.failed(dependency, list(calls.values()), using=self._using, told_at=told_at)
        self._failing.add(dependency)
        for outcome in bad:
            if outcome.key in free and outcome.error is not None:
                outcome.ending = Ending.PARKED
                outcome.error = BreakerOpen(f"breaker {dependency}: {summary(outcome.error)}")


def _run(outcome: Outcome, now: float) -> Run:
    ended_seconds = now - outcome.ended_at
    return Run(*outcome.key, ended_seconds + outcome.run_seconds, ended_seconds)
