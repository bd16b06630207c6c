"""lock_footprint(): the locks that a block has added to its transaction, as data, text and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from django.db import connections

from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_int
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.diagnostics import HeldLock, HeldLocks, LockKind
from jobqueue.exceptions import InvalidValue, TransactionRequired

VERSION = 1

#: kinds that keep others from inserting
GAP_KINDS = (LockKind.GAP, LockKind.NEXT_KEY, LockKind.SUPREMUM)
#: kinds that lock an entry itself
RECORD_KINDS = (LockKind.RECORD, LockKind.NEXT_KEY)
_ORDER = [LockKind.TABLE, *RECORD_KINDS, LockKind.GAP, LockKind.INSERT_INTENTION, LockKind.SUPREMUM]

_LOCKED = {
    LockKind.TABLE: "",
    LockKind.RECORD: "this entry",
    LockKind.GAP: "the gap before it",
    LockKind.NEXT_KEY: "this entry and the gap before it",
    LockKind.SUPREMUM: "the gap behind the last entry",
    LockKind.INSERT_INTENTION: "a place in the gap before it, for one insert",
}


class Footprint:
    """The locks of a block. They are read when the block ends without an error, and stay readable.

    `database` and `isolation` describe the session. `complete` is False where the server cut its list short; `unseen`
    says what this database does not show at all.
    """

    def __init__(self, database: str, unseen: str) -> None:
        self.database, self.unseen = database, unseen
        self.isolation, self.complete = "", True
        self._locks: tuple[HeldLock, ...] | None = None

    @property
    def locks(self) -> tuple[HeldLock, ...]:
        """Every lock, by table, index and key. Raises InvalidValue before the end of the block."""
        if self._locks is None:
            raise InvalidValue(
                "this lock footprint is not available yet: it is collected when its block exits without an error. "
                "Nothing was changed; use it after the block."
            )
        return self._locks

    @property
    def rows(self) -> tuple[HeldLock, ...]:
        """Locks on rows themselves: entries of the clustered index, or rows of PostgreSQL."""
        return tuple(lock for lock in self.locks if lock.is_row)

    @property
    def records(self) -> tuple[HeldLock, ...]:
        """Locks on entries of any index, rows included."""
        return tuple(lock for lock in self.locks if lock.kind in RECORD_KINDS)

    @property
    def gaps(self) -> tuple[HeldLock, ...]:
        """Locks that keep others from inserting: gap, next-key and supremum locks."""
        return tuple(lock for lock in self.locks if lock.kind in GAP_KINDS)

    @property
    def tables(self) -> tuple[HeldLock, ...]:
        """Locks on whole tables. Those of InnoDB that begin with I, and PostgreSQL's Row...Lock, block no rows."""
        return tuple(lock for lock in self.locks if lock.kind is LockKind.TABLE)

    def __repr__(self) -> str:
        return f"<Footprint of {self.database}: {'not read yet' if self._locks is None else _counts(self)}>"

    def __str__(self) -> str:
        """A line for each lock, grouped by table, and the counts."""
        lines = [f"{self.database}, {self.isolation}: {_counts(self)}"]
        table = None
        for lock in self.locks:
            if lock.table != table:
                table = lock.table
                lines.append(table)
            lines.append(_line(lock))
        if not self.complete:
            lines.append("The server cut its list short: there are more locks than these.")
        return "\n".join(lines)

    def as_json(self) -> dict[str, JSON]:
        """The same as values for json.dumps(); `version` grows when their meaning changes."""
        return {
            "version": VERSION,
            "database": self.database,
            "isolation": self.isolation,
            "complete": self.complete,
            "unseen": self.unseen,
            "rows": len(self.rows),
            "records": len(self.records),
            "gaps": len(self.gaps),
            "locks": [asdict(lock) | {"kind": lock.kind.value} for lock in self.locks],
        }

    def _fill(self, before: HeldLocks, after: HeldLocks) -> None:
        """Keep what the transaction holds `after` the block and did not hold `before` it."""
        self._locks = tuple(sorted(after.locks - before.locks, key=_sort_key))
        self.isolation, self.complete = after.isolation, before.complete and after.complete


@contextmanager
def lock_footprint(using: str | None = None) -> Iterator[Footprint]:
    """Record which rows, index entries and gaps the statements of the block lock, in this session's transaction.

    Locks that the transaction held before the block are left out. Reads the server's lock tables twice (on PostgreSQL
    also the tables whose rows were locked): use it in tests and in a shell, not in production. If the block raises, the
    footprint stays unread. `using` defaults to JOBQUEUE["DATABASE"]. Before the block is entered it raises
    TransactionRequired, and NotSupported where the server does not show locks or the account may not see them.
    """
    alias = alias_of(using)
    connection = connections[alias]
    if not connection.in_atomic_block and connection.get_autocommit():
        raise TransactionRequired(
            f"lock_footprint() was called outside transaction.atomic() on {alias!r}: locks would end with each "
            "statement. Nothing was run; put it inside the block."
        )
    dialect = vendor(alias)
    diagnostics = dialect.diagnostics
    before = diagnostics.held(connection)
    footprint = Footprint(dialect.name, diagnostics.held_unseen)
    yield footprint
    footprint._fill(before, diagnostics.held(connection))


@contextmanager
def assert_locks_at_most(
    *, rows: int | None = None, gaps: int | None = None, records: int | None = None, using: str | None = None
) -> Iterator[Footprint]:
    """lock_footprint() that raises AssertionError, with the whole footprint, if the block locks more than that.

    None: any number. Raises it also when the server cut its list short, because more may be locked than it shows.
    """
    limits = {"rows": rows, "gaps": gaps, "records": records}
    wanted = {what: check_int(most, what, 0) for what, most in limits.items() if most is not None}
    if not wanted:
        raise InvalidValue("assert_locks_at_most() needs rows, gaps or records. Nothing was run.")
    with lock_footprint(using) as footprint:
        yield footprint
    found: dict[str, Sequence[HeldLock]] = {what: getattr(footprint, what) for what in wanted}
    many = {what: len(locks) for what, locks in found.items() if len(locks) > wanted[what]}
    over = [f"{number} {what} instead of at most {wanted[what]}" for what, number in many.items()]
    if not footprint.complete:
        over.append("the server did not list all of them")
    if over:
        raise AssertionError(f"the block locked {'; '.join(over)}.\n{footprint}")


_SortKey = tuple[str, bool, str, bool, list[tuple[int, int, str]], int, str]


def _sort_key(lock: HeldLock) -> _SortKey:
    last = lock.kind is LockKind.SUPREMUM or (lock.key or "").startswith("supremum")
    return lock.table, lock.index != "", lock.index, last, _columns(lock.key), _ORDER.index(lock.kind), lock.mode


def _columns(key: str | None) -> list[tuple[int, int, str]]:
    """Sorts entries in the order of the index, as far as numbers and text show it."""
    parts = [] if key is None else re.split(r", (?=(?:[^']*'[^']*')*[^']*$)", key)
    return [(0, int(part), "") if re.fullmatch(r"-?\d+", part) else (1, 0, part) for part in parts]


def _counts(locked: Footprint) -> str:
    """The numbers of rows, index entries and gaps."""
    found = [(locked.rows, "row"), (locked.records, "index entry"), (locked.gaps, "gap")]
    if locked.rows and not any(lock.index for lock in locked.locks):
        # PostgreSQL locks neither entries of indexes nor gaps.
        del found[1:]
    return ", ".join(_count(len(locks), noun) for locks, noun in found)


def _key_of(lock: HeldLock) -> str:
    """The entry of the index, in brackets."""
    if lock.kind is LockKind.TABLE:
        return ""
    if lock.kind is LockKind.SUPREMUM or (lock.key or "").startswith("supremum"):
        return "(end)"
    return "(?)" if lock.key is None else f"({lock.key})"


def _line(lock: HeldLock) -> str:
    if lock.kind is LockKind.TABLE:
        return f"  {'table':<10} {lock.mode}"
    if not lock.index:
        return f"  {'row':<10} {lock.mode:<18} {_key_of(lock)}"
    return f"  {lock.index:<10} {lock.mode:<2} {lock.kind:<16} {_key_of(lock):<14} {_LOCKED[lock.kind]}"


def _count(number: int, noun: str) -> str:
    plural = noun.replace("entry", "entries") if noun.endswith("entry") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
