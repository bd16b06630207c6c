"""What a server reports about locks, in the same terms for every database, and how the product asks for it.

Who holds locks, who waits for whom, deadlocks, slow statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.exceptions import NotSupported

STATEMENT_CHARS = 600
# An unfinished string, too: servers cut statements.
_STRING = r"{q}(?:[^{q}\\]|\\.|{q}{q})*(?:{q}|$)"
_NUMBER = r"\b0x[0-9a-fA-F]+\b|(?<![\w`\"$.])-?\d+(?:\.\d+)?(?![\w`\"])"
_LISTS = re.compile(r"\(\s*\?(?:\s*,\s*\?)+\s*(?:\)|$)")


def marked(text: str) -> str:
    """Text to be translated where it is shown: Django's gettext_noop asks for the settings, too early at import."""
    return text


class LockKind(StrEnum):
    """The part of an index or a table that a lock covers."""

    TABLE = "table"
    RECORD = "record"  # the entry alone (on PostgreSQL: the row)
    GAP = "gap"  # the space before the entry: no other session inserts there
    NEXT_KEY = "next-key"  # the entry and the space before it
    SUPREMUM = "supremum"  # the space behind the last entry
    INSERT_INTENTION = "insert-intention"  # the right to insert into a gap, after a wait for it


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock as the server reports it. `index` is "" for tables and for rows of PostgreSQL."""

    table: str
    index: str
    kind: LockKind
    mode: str  # X, S, IX, IS on InnoDB; on PostgreSQL the name of the lock
    key: str | None = None  # the entry's columns, None where the server does not show them
    is_row: bool = False  # the entry is a row itself: of the clustered index, or of PostgreSQL's heap


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """All locks of one transaction that the server shows."""

    locks: frozenset[HeldLock]
    isolation: str  # of this transaction, which need not be the session's
    complete: bool = True  # False if the server cut its list short


@dataclass(frozen=True, slots=True)
class LockWait:
    """A session that waits for another one, now."""

    identity: str  # names this wait for as long as it lasts
    waiting: int
    blocking: int
    seconds: float  # how long it has waited
    locked: str  # the record, row or table it waits for
    mode: str
    #: statements without their values; of the blocker: what it runs, or ran last; "" = not reported
    waiting_statement: str
    blocking_statement: str
    blocker_idles: bool  # it does nothing, and keeps its transaction open
    blocking_seconds: float | None  # how old the blocker's transaction is


def lock_wait(
    identity: str, sessions: tuple[int | None, int | None], locked: str, mode: str, *rest: Any, quotes: str = "'"
) -> LockWait:
    """A LockWait from the values of a driver.

    `rest`: the seconds; the statements of both sessions; whether the blocker idles; the age of its transaction.
    """
    seconds, waits_in, blocks_in, idles, age = rest
    return LockWait(
        identity=identity,
        waiting=int(sessions[0] or 0),
        blocking=int(sessions[1] or 0),
        seconds=float(seconds or 0),
        locked=locked,
        mode=mode,
        waiting_statement=without_values(waits_in, quotes),
        blocking_statement=without_values(blocks_in, quotes),
        blocker_idles=bool(idles),
        blocking_seconds=None if age is None else float(age),
    )


@dataclass(frozen=True, slots=True)
class RowHolder:
    """Another session that keeps a row or a whole table locked, whether anybody waits for it or not."""

    table: str
    key: str  # the first column of the row's primary key; "" = the table
    session: int
    seconds: float | None  # how old its transaction is
    statement: str  # without its values: what it runs, or ran last; "" = not reported
    idles: bool  # it does nothing, and keeps its transaction open
    surely: bool = True  # False: the row is locked, and the server does not tell by which of several transactions


@dataclass(frozen=True, slots=True)
class SlowStatement:
    """A kind of statement, by the time it spent waiting for locks since the server counts."""

    statement: str
    runs: int
    lock_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Party:
    """One transaction of a deadlock."""

    session: int
    statement: str
    holds: tuple[str, ...]
    waits_for: tuple[str, ...]
    rolled_back: bool


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Which transaction held what, waited for what, and was rolled back."""

    identity: str  # names this deadlock
    parties: tuple[Party, ...]
    unseen: str = ""  # what the report does not contain here; "" = nothing


class OldTransaction(NamedTuple):
    """A transaction of another session that has been open for long."""

    session: int
    seconds: float
    idles: bool  # its session runs no statement
    locks: bool  # it has locked rows; on PostgreSQL, of the table that was asked for


class DeadRows(NamedTuple):
    """Rows of a table, as the server estimates them."""

    dead: int
    live: int


def statement_of(error: BaseException) -> str:
    """The SQL, with its placeholders, that raised a database error; "" if it is not in the traceback."""
    trace = error.__traceback__
    while trace is not None:
        # Django's cursor; no error of a driver has its statement.
        sql = trace.tb_frame.f_locals.get("sql") if trace.tb_frame.f_code.co_name == "_execute" else None
        if isinstance(sql, str):
            return sql
        trace = trace.tb_next
    return ""


def without_values(statement: str | None, quotes: str = "'") -> str:
    """A statement with ? for each value, at most 600 characters: values may be secrets, and would hide its kind.

    `quotes`: what strings are written in.
    """
    masked = _values(quotes).sub("?", statement or "")
    return " ".join(_LISTS.sub("(?, ...)", masked).split())[:STATEMENT_CHARS]


@cache
def _values(quotes: str) -> re.Pattern[str]:
    return re.compile("|".join([*(_STRING.format(q=quote) for quote in quotes), _NUMBER]), re.DOTALL)


class Diagnostics:
    """The answers for a database that we know nothing about; each subclass is one database.

    A method raises NotSupported, with a sentence for people, where the server does not report what it asks for.
    """

    name = "this database"
    #: whether there is anything to ask for
    available = False
    refusal = marked(
        "This database does not tell who waits for whom: on SQLite a writer waits for the whole file. "
        "The statistics of your own locks are complete."
    )
    #: what held() cannot know here, for people
    held_unseen = ""

    def held(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """The locks that this session's transaction holds."""
        raise NotSupported(
            f"{self.name} has no row locks to show: a transaction that writes locks the whole database. "
            "Nothing was changed; look at locks on the database that you use in production."
        )

    def waits(self, connection: BaseDatabaseWrapper, limit: int = 20) -> list[LockWait]:
        """Up to `limit` waits for locks that go on now, the longest first."""
        raise NotSupported(self.refusal)

    def may_lock(self, connection: BaseDatabaseWrapper, session: int, table: str) -> bool:
        """Whether a session may have locked rows of `table`: False only if the server says that it has not."""
        return True

    def row_holders(
        self, connection: BaseDatabaseWrapper, rows: Mapping[str, tuple[str, Sequence[int | str]]], seconds: float
    ) -> list[RowHolder]:
        """The sessions that hold locks on some of these rows in transactions older than `seconds`, the oldest first.

        `rows` maps a table to the first column of its primary key and values of it. [] if the server does not tell.
        """
        return []

    def table_holders(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[RowHolder]:
        """The sessions that have locked one of these whole tables against readers. [] if the server does not tell."""
        return []

    def deadlocks(self, connection: BaseDatabaseWrapper) -> int:
        """How many deadlocks the server has ended since it began to count."""
        raise NotSupported(self.refusal)

    def latest_deadlock(self, connection: BaseDatabaseWrapper) -> Deadlock | None:
        """The report of the newest one, where the server keeps it."""
        raise NotSupported(self.refusal)

    def deadlock_in(self, error: BaseException) -> Deadlock | None:
        """The report in an error that this process received; None where the server keeps it, or it was no deadlock."""
        return None

    def slow_statements(self, connection: BaseDatabaseWrapper, limit: int = 10) -> list[SlowStatement]:
        """Up to `limit` kinds of statements of this database by their time spent waiting for locks."""
        raise NotSupported(self.refusal)

    def old_transactions(
        self, connection: BaseDatabaseWrapper, table: str, seconds: float, limit: int
    ) -> list[OldTransaction]:
        """Up to `limit` transactions of other sessions that are open for longer, the oldest first.

        `table`: whether it has locks there is told on PostgreSQL; other servers do not know the table.
        """
        return []

    def dead_rows(self, connection: BaseDatabaseWrapper, table: str) -> DeadRows | None:
        """None: the server removes dead rows by itself, or has none."""
        return None
