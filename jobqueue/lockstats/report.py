"""Reads lock activity: our own counters, what the server reports now, and earlier findings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.db import Error, connections, transaction
from django.db.models import Aggregate, F, Max, QuerySet, Sum

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.lock_facts import LockWait, SlowStatement
from jobqueue.exceptions import NotSupported
from jobqueue.lockstats.counters import COUNTER_NAMES, Counters
from jobqueue.models import LockFinding, LockRow, LockStat, RedoneStat

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LockSummary:
    """The counters of one key, or of a kind with key ""; in a list of keys "" stands for keys without their own row."""

    kind: str
    key: str
    counters: Counters

    @property
    def failure_rate(self) -> float:
        """The share of tries that ended in LockNotAcquired, 0 to 1."""
        return self.counters.failed / (self.counters.acquired + self.counters.failed or 1)

    @property
    def wait_seconds(self) -> float:
        """The average time of a try, failed tries included."""
        return self.counters.wait_us / (self.counters.acquired + self.counters.failed or 1) / 1e6

    @property
    def held_seconds(self) -> float:
        """The average time for which the lock was held."""
        return self.counters.held_us / (self.counters.released or 1) / 1e6


@dataclass(frozen=True, slots=True)
class ServerLocks:
    """What the server reports now; None where it does not, for the reason in `problems`."""

    waits: list[LockWait] | None
    deadlocks: int | None
    slow: list[SlowStatement] | None
    problems: tuple[str, ...]


def read_kinds(*, seconds: float, using: str) -> list[LockSummary]:
    """The sums of each kind of lock over the last `seconds`."""
    rows = _since(seconds, using).values("kind").annotate(**_SUMS).order_by("kind")
    return [_summary(row, "") for row in rows]


def read_keys(*, seconds: float, limit: int, using: str) -> list[LockSummary]:
    """The `limit` keys with most contention over the last `seconds`: not got or not at once, then by time waited.

    Reads the counters of that time: at most 51 rows per kind, process and minute.
    """
    rows = _since(seconds, using).values("kind", "lock_key").annotate(**_SUMS)
    ranked = rows.order_by(
        (F("sum_failed") + F("sum_contended")).desc(), "-sum_reentries", "-sum_wait_us", "-sum_acquired", "lock_key"
    )
    return [_summary(row, row["lock_key"]) for row in ranked[:limit]]


@dataclass(frozen=True, slots=True)
class RedoneTransactions:
    """Transactions of one verb that one kind of error ended: how many ran again, how many raised it to the caller."""

    verb: str
    error: str
    redone: int
    given_up: int
    last_seen_at: datetime
    now: datetime


def read_redone(*, seconds: float, using: str) -> list[RedoneTransactions]:
    """The transactions of all processes that were redone or given up in the last `seconds`, the worst first.

    At most as many as there are verbs and kinds of errors.
    """
    rows = (
        RedoneStat._default_manager.using(using).filter(last_seen_at__gt=UtcNowPlus(-seconds)).values("verb", "error")
    )
    sums = rows.annotate(sum_redone=Sum("redone"), sum_given_up=Sum("given_up"), last=Max("last_seen_at"), now=UtcNow())
    return [
        RedoneTransactions(
            row["verb"], row["error"], int(row["sum_redone"]), int(row["sum_given_up"]), row["last"], row["now"]
        )
        for row in sums.order_by("-sum_given_up", "-sum_redone", "verb", "error")
    ]


def read_server(*, using: str, limit: int = 20) -> ServerLocks:
    """Ask the server. What it refuses is None in the answer and no error."""
    problems: list[str] = []
    server, connection = vendor(using).diagnostics, connections[using]
    return ServerLocks(
        waits=_ask(lambda: server.waits(connection, limit), using, problems),
        deadlocks=_ask(lambda: server.deadlocks(connection), using, problems),
        slow=_ask(lambda: server.slow_statements(connection, limit), using, problems),
        problems=tuple(dict.fromkeys(problems)),
    )


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Figures of the server; None where it does not tell."""

    waits: int | None  # sessions that wait for a lock now, up to the limit
    longest_wait_seconds: float | None  # 0 if none waits
    deadlocks: int | None  # since the server began to count


def read_server_counts(*, using: str, limit: int = 100) -> ServerCounts:
    """Ask the server for numbers only. What it refuses is None in the answer and no error."""
    server, connection = vendor(using).diagnostics, connections[using]
    waits = _ask(lambda: server.waits(connection, limit), using, [])
    deadlocks = _ask(lambda: server.deadlocks(connection), using, [])
    if waits is None:
        return ServerCounts(None, None, deadlocks)
    return ServerCounts(len(waits), max((wait.seconds for wait in waits), default=0.0), deadlocks)


def read_waits(*, using: str, limit: int = 20) -> list[LockWait]:
    """The waits for locks that go on now, the longest first; [] where the server does not tell them."""
    server, connection = vendor(using).diagnostics, connections[using]
    return _ask(lambda: server.waits(connection, limit), using, []) or []


def read_findings(kind: LockFinding.Kind, *, limit: int, using: str) -> QuerySet[LockFinding]:
    """Findings of a kind, the newest first, with the database's time as `now`."""
    rows: QuerySet[LockFinding] = LockFinding.objects.using(using).filter(kind=kind.value)
    return rows.annotate(now=UtcNow()).order_by("-last_seen_at")[:limit]


def read_held(*, limit: int, using: str) -> QuerySet[LockRow]:
    """Lease locks that are held, the last to end first, with the database's time as `now`."""
    held: QuerySet[LockRow] = LockRow.objects.using(using).filter(expires_at__gt=UtcNow(), owner_token__isnull=False)
    return held.annotate(now=UtcNow()).order_by("-expires_at")[:limit]


_SUMS: dict[str, Aggregate] = {f"sum_{name}": (Max if name.endswith("_max") else Sum)(name) for name in COUNTER_NAMES}


def _since(seconds: float, using: str) -> QuerySet[Any]:
    return LockStat.objects.using(using).filter(counted_at__gt=UtcNowPlus(-seconds))


def _summary(row: dict[str, Any], key: str) -> LockSummary:
    return LockSummary(row["kind"], key, Counters(**{name: int(row[f"sum_{name}"]) for name in COUNTER_NAMES}))


def _ask(ask: Callable[[], T], using: str, problems: list[str]) -> T | None:
    # A refused statement must not undo the transaction of a request.
    block = transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext()
    try:
        with block:
            return ask()
    except NotSupported as error:
        problems.append(str(error))
    except Error as error:
        problems.append(f"{type(error).__name__}: {error}")
    return None
