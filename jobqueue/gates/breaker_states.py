"""What claims know of circuit breakers: those that are not closed, and those of services that have begun to fail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from itertools import starmap
from typing import NamedTuple

from django.db.models import Q

from jobqueue.conf import load
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.failures.dependencies import settings_of
from jobqueue.gates import declared
from jobqueue.models import BreakerState

State = BreakerState.State


class Known(NamedTuple):
    """A breaker that is not closed."""

    state: str
    since: datetime
    by_hand: bool
    until: datetime | None  # of one that was opened by hand; None: until close()
    probe_at: datetime | None  # when the next probe may start
    probe: tuple[int, int] | None  # the id and fence of the job that is the probe

    @property
    def looks_again_at(self) -> datetime | None:
        """When a job that waits may start without anything happening."""
        return self.until if self.by_hand else self.probe_at


def has_dependencies() -> bool:
    """Whether any task or setting of this process names a dependency; else there are no breakers for it."""
    return bool(load().dependencies) or declared.any_dependency()


def read_breakers(using: str) -> tuple[Mapping[str, Known], frozenset[str]]:
    """The breakers that are not closed, and the names of closed ones with failures in their window."""
    breakers: dict[str, Known] = {}
    failing: set[str] = set()
    for row in starmap(_BreakerRow, _rows(using).rows()):
        if row.state == State.CLOSED:
            failing.add(row.dependency)
        elif not is_over(row, row.now):
            breakers[row.dependency] = known(row, row.now)
    return breakers, frozenset(failing)


class _BreakerRow(NamedTuple):
    """What claims read of a row of job_breaker, and the database's time."""

    dependency: str
    state: str
    since: datetime | None
    updated_at: datetime
    by_hand: bool
    until: datetime | None
    probe_at: datetime | None
    probe_job: int | None
    probe_fence: int | None
    now: datetime


@cache
def _rows(using: str) -> Prepared:
    rows = BreakerState.objects.using(using).filter(~Q(state=State.CLOSED) | Q(failures__gt=0))
    return prepare_rows(rows.annotate(now=Selected(UtcNow())).values_list(*_BreakerRow._fields))


def known(row: BreakerState | _BreakerRow, now: datetime) -> Known:
    """What claims need of a row that is not closed, read at `now`."""
    probe = None if row.probe_job is None or row.probe_fence is None else (row.probe_job, row.probe_fence)
    probe_at = row.probe_at
    if probe_at is not None and (probe_at - now).total_seconds() > longest_wait(row.dependency):
        # The clock was set back: the probe may come now, not after the old time.
        probe_at = None
    return Known(row.state, row.since or row.updated_at, row.by_hand, row.until, probe_at, probe)


def longest_wait(dependency: str) -> float:
    """How many seconds ahead the next probe can be, with some for PROBE being longer in another process."""
    return 60.0 + settings_of(dependency, load().dependencies).probe


def is_over(row: BreakerState | _BreakerRow, now: datetime) -> bool:
    """Whether a breaker that was opened by hand until some time counts as closed."""
    return row.by_hand and row.until is not None and row.until <= now
