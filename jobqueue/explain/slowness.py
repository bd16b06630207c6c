"""database_slow: the database takes long for a trivial statement, for the read of a claim, or for a commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from django.db import connections
from django.utils.translation import gettext

from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.sockets import ping
from jobqueue.explain.explanation import Explanation
from jobqueue.maintenance.worker_rows import SLOW_COMMIT
from jobqueue.payload import JSON
from jobqueue.transitions.claiming import candidates

#: a round trip that takes longer is slow, and so is the read of a claim
ROUND_TRIP_SECONDS, CLAIM_SECONDS = 0.1, 0.5
#: how often a slow statement is tried; the fastest counts, because a busy process may be slow by itself
TRIES = 3
#: jobs that a claim is taken to ask for
CLAIM_SIZE = 10
T = TypeVar("T")


class SlowCommit(NamedTuple):
    """What a worker says of its heartbeats: the time of one UPDATE with its commit, above the worker's limit."""

    ms: int
    worker: str
    host: str


def slow_commit_ms(troubles: JSON) -> int | None:
    """What the column `troubles` of a worker's row says; None: commits are not slow, or it cannot be read."""
    found = troubles.get(SLOW_COMMIT) if isinstance(troubles, dict) else None
    ms = found.get("ms") if isinstance(found, dict) else None
    return ms if isinstance(ms, int) else None


class Stopwatch:
    """Measures statements of one database that are sent anyway."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._round_trip: float | None = None
        self._claim: tuple[str, float] | None = None
        self._commit: SlowCommit | None = None

    def first(self, statement: Callable[[], T]) -> T:
        """Send a statement that reads a row at most, and measure it. If it is slow, trivial ones are measured."""
        # What may have to connect first must not count.
        connections[self._using].ensure_connection()
        found, seconds = _timed(statement)
        if seconds > ROUND_TRIP_SECONDS:
            seconds = min(_timed(lambda: ping(connections[self._using]))[1] for _ in range(TRIES))
        self._round_trip = seconds
        return found

    def claim(self, queue: str, priority: int) -> None:
        """Measure the read of a claim of due jobs of `queue`, without locks. One statement, TRIES if it is slow."""

        def seconds_of_read() -> float:
            return _timed(lambda: _claimed(self._using).rows(queue=queue, level=priority))[1]

        seconds = seconds_of_read()
        for _ in range(TRIES - 1):
            if seconds > CLAIM_SECONDS:
                seconds = min(seconds, seconds_of_read())
        self._claim = queue, seconds

    def note_commits(self, commits: Sequence[SlowCommit]) -> None:
        """Note what workers say: to measure a commit here, something would have to be written."""
        self._commit = max(commits, default=None)

    def told(self) -> list[Explanation]:
        """database_slow, if one of the three was slow."""
        trip, (queue, claim) = self._round_trip or 0.0, self._claim or (None, 0.0)
        if trip <= ROUND_TRIP_SECONDS and claim <= CLAIM_SECONDS and self._commit is None:
            return []
        # Rounded once, so that the text and the evidence tell the same figure.
        trip_ms, claim_ms = round(1000 * trip, 1), round(1000 * claim, 1)
        evidence: dict[str, JSON] = {
            "database": self._using,
            "round_trip_ms": trip_ms,
            "round_trip_limit_ms": 1000 * ROUND_TRIP_SECONDS,
            "claim_ms": None if self._claim is None else claim_ms,
            "claim_limit_ms": 1000 * CLAIM_SECONDS,
            "claim_queue": queue,
            "commit_ms": None if self._commit is None else self._commit.ms,
            "commit_worker": None if self._commit is None else self._commit.worker,
        }
        facts: dict[str, object] = {"queue": queue}
        if trip > ROUND_TRIP_SECONDS:
            text, step = _far()
            facts |= {"ms": f"{trip_ms:.0f}", "limit": f"{1000 * ROUND_TRIP_SECONDS:.0f}"}
        elif claim > CLAIM_SECONDS or self._commit is None:
            text, step = _slow_claim()
            facts |= {"ms": f"{claim_ms:.0f}", "limit": f"{1000 * CLAIM_SECONDS:.0f}"}
        else:
            text, step = _slow_commit()
            facts |= self._commit._asdict()
        return [Explanation("database_slow", text % facts, evidence, step)]


def _far() -> tuple[str, str]:
    return gettext(
        "The database answers slowly: a trivial statement takes %(ms)s ms, and more than %(limit)s ms is slow. "
        "Each claim and each end of a job needs several."
    ), gettext(
        "Look at the load of the database server and at the network between it and this host. The workers may "
        "be nearer to it."
    )


def _slow_claim() -> tuple[str, str]:
    return gettext(
        "The database answers slowly: the read that a claim of queue %(queue)s begins with takes %(ms)s ms, and "
        "more than %(limit)s ms is slow."
    ), gettext(
        "Look at the load of the database server, and for transactions that have been open for long: they keep it from "
        "cleaning the index up. jobs doctor names them, and checks the plan of the claim."
    )


def _slow_commit() -> tuple[str, str]:
    return gettext(
        "The database commits slowly: one UPDATE with its commit takes %(ms)d ms for worker %(worker)s on host "
        "%(host)s. Each claim and each end of a job needs a commit."
    ), gettext(
        "Look at the load of the database server's disk, and at replicas for which a commit waits. On SQLite, look "
        "for another program that writes for a long time."
    )


def _timed(statement: Callable[[], T]) -> tuple[T, float]:
    begun = time.perf_counter()
    return statement(), time.perf_counter() - begun


@cache
def _claimed(using: str) -> Prepared:
    # Of one priority: where a subquery looks for it, MariaDB reads the delayed jobs of a higher one, too.
    return prepare_rows(candidates.due(candidates.QUEUE, candidates.LEVEL, using=using).values_list("pk")[:CLAIM_SIZE])
