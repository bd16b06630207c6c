"""Failures of outside services that this process has met and whose circuit breakers do not know of them yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from jobqueue.failures import FailureCause
from jobqueue.gates import declared
from jobqueue.transitions import Lease
from jobqueue.transitions.causes import cause_of
from jobqueue.worker.run.attempt import Ending, Outcome

#: a job waits so long at most: longer than a database that can be reached needs to record a failure
WAIT_SECONDS = 5.0


def is_outage(outcome: Outcome) -> bool:
    """Whether the run failed because of its dependency: another cause says nothing about it."""
    error = outcome.error
    if outcome.ending is not Ending.FAILED or error is None or declared.needed_by(outcome.lease) is None:
        return False
    return cause_of(error, outcome.lease.task) == FailureCause.DEPENDENCY


class Untold:
    """Jobs that were claimed ahead wait here while a failure of their service is being recorded.

    Else a child would run all of them during an outage: each takes less time than the record of the first one.
    """

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._told = threading.Condition()

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Note the outages among these runs, before the settler has them."""
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if failed and (found := outages_of(failed)):
            with self._told:
                self._failures += Counter(found)

    def told(self, outages: Sequence[str]) -> None:
        """Let jobs go on: the breakers know of these outages, or could not be told."""
        if outages:
            with self._told:
                self._failures -= Counter(outages)
                self._told.notify_all()

    def wait(self, leases: Iterable[Lease]) -> None:
        """Return when no failure of the services that these jobs need is being recorded, or after WAIT_SECONDS."""
        if self._failures:
            names = {declared.needed_by(lease) for lease in leases}
            with self._told:
                self._told.wait_for(lambda: names.isdisjoint(self._failures), WAIT_SECONDS)


def outages_of(outcomes: Iterable[Outcome]) -> list[str]:
    """The service of each of these runs that failed because of it."""
    # Most runs have no error: they cost no call.
    failed = [outcome for outcome in outcomes if outcome.error is not None and is_outage(outcome)]
    found = [declared.needed_by(outcome.lease) for outcome in failed] if failed else []
    return [name for name in found if name is not None]
