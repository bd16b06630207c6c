"""Circuit breakers of dependencies, as a child meets them: which jobs it may start, and what their ends say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from django.db import Error

from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.failures import summary
from jobqueue.gates import breaker, declared
from jobqueue.gates.breaker import BreakerOpen, Run
from jobqueue.gates.rules import forget_rules, rules
from jobqueue.transitions import Lease
from jobqueue.worker.run.attempt import Ending, Outcome, is_outage, outages_of
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import ProcessSlot

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

    def sift(self, leases: list[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Return the leases that may run, and those that are to be given back. One statement if any has a dependency.

        The claim goes by what it knew a moment ago: without this look, an outage would use up the attempts of all jobs
        that are claimed within that time.
        """
        names = {name for name, _ in declared.needing(leases)}
        if not names:
            return leases, []
        declared.meet(names)
        look = partial(breaker.those_not_closed, names, self._using)
        found = retry_transient("breaker", look, using=self._using)
        if not found:
            return leases, []
        # The job threads must know a probe that was claimed just now.
        forget_rules()
        self._pool.rules = rules(self._using)
        shut = [
            lease
            for lease in leases
            if (name := declared.needed_by(lease)) in found and found[name].probe != (lease.job_id, lease.fence)
        ]
        return [lease for lease in leases if lease not in shut], shut

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
