"""Reads lock activity: our own counters, what the server reports now, and earlier findings, also in sentences."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import Error, connections, transaction
from django.db.models import Aggregate, F, Max, QuerySet, Sum
from django.utils import translation
from django.utils.translation import gettext

from jobqueue.base.durations import format_seconds
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.diagnostics import LockWait, SlowStatement
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.expressions import PartNumber
from jobqueue.db.retry import VERBS
from jobqueue.exceptions import NotSupported
from jobqueue.lockstats.recorder import COUNTER_NAMES, TRANSACTION, Counters
from jobqueue.models import LockFinding, LockRow, LockStat

logger = logging.getLogger("jobqueue.locks")
T = TypeVar("T")

NOTHING = "-"


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
    rows = _of_locks(seconds, using).values("kind").annotate(**_SUMS).order_by("kind")
    return [_summary(row, "") for row in rows]


def read_keys(*, seconds: float, limit: int, using: str) -> list[LockSummary]:
    """The `limit` keys with most contention over the last `seconds`: not got or not at once, then by time waited.

    Reads the counters of that time: at most 51 rows per kind, process and minute.
    """
    rows = _of_locks(seconds, using).values("kind", "lock_key").annotate(**_SUMS)
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
    rows = _since(seconds, using).filter(kind=TRANSACTION).values("lock_key")
    sums = rows.annotate(redone=Sum("contended"), given_up=Sum("failed"), last=Max("counted_at"), now=UtcNow())
    found = []
    for row in sums.order_by("-given_up", "-redone", "lock_key"):
        verb, _, error = row["lock_key"].partition(" ")
        redone, given_up = int(row["redone"]), int(row["given_up"])
        found.append(RedoneTransactions(verb, error, redone, given_up, row["last"], row["now"]))
    return found


@dataclass(frozen=True, slots=True)
class DeadlockHour:
    """How many transactions met a deadlock in one hour of the day, 0 to 23 in UTC, on all days together."""

    hour: int
    deadlocks: int


def read_deadlock_hours(*, seconds: float, using: str) -> list[DeadlockHour]:
    """The hours of the day in which transactions of any process met deadlocks in the last `seconds`, in their order.

    Those that ran again, and those that raised the error to their caller.
    """
    keys = [f"{verb} {ErrorKind.DEADLOCK}" for verb in VERBS]
    rows = _since(seconds, using).filter(kind=TRANSACTION, lock_key__in=keys)
    found = Counter[int]()
    sums = rows.order_by().values(number=PartNumber("counted_at", timedelta(hours=1)))
    for row in sums.annotate(deadlocks=Sum(F("contended") + F("failed"))):
        found[int(row["number"]) % 24] += int(row["deadlocks"])
    return [DeadlockHour(*one) for one in sorted(found.items())]


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
    """The waits for locks that go on now, the longest first; [] where the server does not tell them.

    An error, such as that the server took too long to answer, is logged: the waits are then not known.
    """
    server, connection = vendor(using).diagnostics, connections[using]

    def waits() -> list[LockWait]:
        try:
            return server.waits(connection, limit)
        except Error as error:
            logger.warning("the waits for locks could not be read, so they are not shown: %s", error)
            raise

    return _ask(waits, using, []) or []


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


def _of_locks(seconds: float, using: str) -> QuerySet[Any]:
    return _since(seconds, using).exclude(kind=TRANSACTION)


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


def finding_lines(finding: LockFinding) -> list[str]:
    """One line; for a deadlock several. What another version or plain SQL has written may not be readable."""
    try:
        return _lines(finding)
    except (TypeError, ValueError, LookupError, AttributeError):
        return [gettext("The details cannot be read: another version of the package has written them, or plain SQL.")]


def _lines(finding: LockFinding) -> list[str]:
    detail = finding.detail
    if finding.kind == LockFinding.Kind.DEADLOCK:
        return list(_deadlock_lines(detail))
    if finding.kind == LockFinding.Kind.WAIT:
        return [wait_line(LockWait(**detail))]
    if finding.kind == LockFinding.Kind.SLOW:
        text = gettext("%(runs)d runs waited %(time)s for locks: %(statement)s")
        return [text % {**detail, "time": format_seconds(detail["lock_seconds"])}]
    text = gettext(
        "%(lock)s %(key)s ends %(ttl_seconds)g s after it is acquired, but its job %(task)s may run for "
        "%(limit_seconds)g s: raise ttl_seconds, renew() between steps, or lower timeout_seconds."
    )
    return [text % detail]


def wait_line(wait: LockWait) -> str:
    """A sentence about who waits for whom."""
    text = gettext(
        "session %(waiting)d waited %(time)s for %(locked)s (%(mode)s) with: %(wanted)s; session %(blocking)d held it: "
        "%(held)s"
    )
    wanted = wait.waiting_statement or NOTHING
    return text % {
        "waiting": wait.waiting,
        "time": format_seconds(wait.seconds),
        "locked": wait.locked,
        "mode": wait.mode,
        "wanted": wanted,
        "blocking": wait.blocking,
        "held": blocker(wait),
    }


def blocker(wait: LockWait) -> str:
    """The statement of the blocking session."""
    statement = wait.blocking_statement or NOTHING
    if not wait.blocker_idles:
        return statement
    return gettext("idle in its transaction, before that: %(statement)s") % {"statement": statement}


def _deadlock_lines(detail: Mapping[str, Any]) -> Iterator[str]:
    for party in detail["parties"]:
        facts = {"session": party["session"], "statement": party["statement"] or NOTHING}
        yield gettext("session %(session)d: %(statement)s") % facts
        for lock in party["holds"]:
            yield "    " + gettext("held: %(lock)s") % {"lock": lock}
        for lock in party["waits_for"]:
            yield "    " + gettext("waited for: %(lock)s") % {"lock": lock}
        if party["rolled_back"]:
            yield "    " + gettext("was rolled back")
    if detail["unseen"]:
        yield translation.gettext(detail["unseen"])
