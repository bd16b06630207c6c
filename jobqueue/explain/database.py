"""read_only, database_slow and connection: the server refuses writes, answers slowly, or has no session left.

Where it takes long for each statement, the Stopwatch also says what an explanation has time for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter
from typing import NamedTuple, TypeVar

from django.db import connections
from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.sessions import ping
from jobqueue.explain.explanation import CODES, Explanation, Look, found_by
from jobqueue.maintenance.worker_rows import SLOW_COMMIT
from jobqueue.transitions.claiming import candidates

#: a round trip that takes longer is slow, and so is the read of a claim
ROUND_TRIP_SECONDS, CLAIM_SECONDS = 0.1, 0.5
#: how often a slow statement is tried; the fastest counts, because a busy process may be slow by itself
TRIES = 3
#: if round trips are slow, a statement is sent only if it can end by then: so the answer comes within a second
ANSWER_SECONDS = 0.8
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

    def __init__(self, using: str, *, all_causes: bool = False, measures: bool = True) -> None:
        """`all_causes`: they are looked at however long it takes, so has_time() is always True.

        `measures`: without it, there is no database_slow either.
        """
        self._using, self._all_causes, self.measures = using, all_causes, measures
        self._begun = perf_counter()
        self._round_trip = 0.0
        self._claim: tuple[str, float] | None = None
        self._commit: SlowCommit | None = None
        self._not_looked_at = set[str]()

    def first(self, statement: Callable[[], T]) -> T:
        """Send a statement that reads a row at most, and measure it. If it is slow, trivial ones are measured."""
        # The time to connect must not count.
        connections[self._using].ensure_connection()
        self._begun = perf_counter()
        found, seconds = _timed(statement)
        for _ in range(TRIES - 1):
            if seconds > ROUND_TRIP_SECONDS:
                seconds = min(seconds, _timed(lambda: ping(connections[self._using]))[1])
        self._round_trip = seconds
        return found

    def has_time(self, *wanted: Look | str, statements: int = 1) -> bool:
        """Whether there is time for so many statements of these looks, and for these codes; if not, told() names them.

        There is, unless round trips are slow: then the statements must end within ANSWER_SECONDS.
        """
        if self._all_causes or self._round_trip <= ROUND_TRIP_SECONDS:
            return True
        spent = perf_counter() - self._begun
        if spent + statements * self._round_trip <= ANSWER_SECONDS:
            return True
        for one in wanted:
            self._not_looked_at.update([one] if isinstance(one, str) else found_by(one))
        return False

    def claim(self, queue: str, priority: int) -> None:
        """Measure the read of a claim of due jobs of `queue`, without locks. One statement, TRIES if it is slow."""
        if not self.measures:
            return

        def seconds_of_read() -> float:
            return _timed(lambda: _claimed(self._using).rows(queue=queue, level=priority))[1]

        seconds = seconds_of_read()
        for _ in range(TRIES - 1):
            if seconds > CLAIM_SECONDS:
                seconds = min(seconds, seconds_of_read())
        self._claim = queue, seconds

    def note_commits(self, commits: Sequence[SlowCommit]) -> None:
        """Note what workers say: to measure a commit here, something would have to be written."""
        self._commit = max(commits, default=None) if self.measures else None

    def told(self) -> list[Explanation]:
        """database_slow, if one of the three was slow."""
        trip, (queue, claim) = self._round_trip, self._claim or (None, 0.0)
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
            "looked_at_all": not self._not_looked_at,
            "not_looked_at": [code for code in CODES if code in self._not_looked_at],
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
        text = text % facts
        if self._not_looked_at:
            more = gettext("Other causes were not looked at, so that this answer comes within a second.")
            how = gettext("To look at all causes, however long that takes: jobs explain with --all-causes.")
            text, step = f"{text} {more}", f"{step} {how}"
        return [Explanation("database_slow", text, evidence, step)]


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
    begun = perf_counter()
    return statement(), perf_counter() - begun


@cache
def _claimed(using: str) -> Prepared:
    # Of one priority: where a subquery looks for it, MariaDB reads the delayed jobs of a higher one, too.
    return prepare_rows(candidates.due(candidates.QUEUE, candidates.LEVEL, using=using).values_list("pk")[:CLAIM_SIZE])


def read_only(using: str) -> list[Explanation]:
    """read_only, if the database refuses the writes of this process. One statement or two.

    Workers may have another account or another server.
    """
    setting = vendor(using).write_refusal(connections[using])
    if not setting:
        return []
    text = gettext("The database refuses writes (%(setting)s), so no job starts, and none can end.")
    step = gettext("Let it accept writes again. If it is a replica, give DATABASES the address of the primary.")
    return [Explanation("read_only", text % {"setting": setting}, {"setting": setting, "database": using}, step)]


def full(using: str) -> list[Explanation]:
    """connection, if the server has none left for others. One statement or two."""
    use = vendor(using).session_use(connections[using])
    if use is None or use.used < use.limit:
        return []
    text = gettext("All connections that the server allows are in use: %(used)d of %(limit)d. New ones are refused.")
    step = gettext("Find out who holds them. Run fewer threads, lower CONN_MAX_AGE, or raise the limit.")
    evidence: dict[str, JSON] = {"kind": "full", "database": using, "limit": use.limit, "used": use.used}
    return [Explanation("connection", text % {"used": use.used, "limit": use.limit}, evidence, step)]
