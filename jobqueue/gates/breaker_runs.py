"""Runs as circuit breakers see them: when each began and ended, by the database's clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

Key = tuple[int, int]
#: the clocks of databases are at least so exact
CLOCK_SECONDS = 0.001


class Run(NamedTuple):
    """A run that has ended, and how long ago it began and ended: it is recorded later, and was claimed earlier."""

    job_id: int
    fence: int
    began_seconds: float
    ended_seconds: float

    @property
    def key(self) -> Key:
        """The identity of this run: the job and its token."""
        return self.job_id, self.fence

    def began_after(self, instant: datetime | None, told: Told) -> bool:
        """Whether it began after this instant; None is before all runs."""
        return instant is None or told.earliest - timedelta(seconds=self.began_seconds) >= instant

    def ended_after(self, instant: datetime, told: Told) -> bool:
        """Whether it surely ended after this instant."""
        return told.earliest - timedelta(seconds=self.ended_seconds) > instant

    def was_running(self, instant: datetime | None, told: Told) -> bool:
        """Whether it surely ran at this instant: then a thread has one such run, however its runs are recorded."""
        if instant is None:
            return False
        began = told.latest - timedelta(seconds=self.began_seconds)
        return began < instant <= told.earliest - timedelta(seconds=self.ended_seconds)


class Told(NamedTuple):
    """When runs were recorded, by the database's clock: it was read later, between two looks at the process's clock."""

    earliest: datetime
    latest: datetime


def told_of(row: Any, told_at: float) -> Told:
    """The instant `told_at` by the database's clock: a wait for a lock, or for the processor, does not move it."""
    before, after = row.read_between
    exact = timedelta(seconds=CLOCK_SECONDS)
    return Told(
        row.now - timedelta(seconds=after - told_at) - exact, row.now - timedelta(seconds=before - told_at) + exact
    )
