"""lock_footprint(): the locks that a block has added to its transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.lock_facts import HeldLock, HeldLocks, LockKind
from jobqueue.exceptions import InvalidValue, TransactionRequired
from jobqueue.inspect import svg as picture
from jobqueue.inspect import wording as words
from jobqueue.validation import check_int

_HAS_GAP = (LockKind.GAP, LockKind.NEXT_KEY, LockKind.SUPREMUM)
_HAS_RECORD = (LockKind.RECORD, LockKind.NEXT_KEY)
_ORDER = [LockKind.TABLE, *_HAS_RECORD, LockKind.GAP, LockKind.INSERT_INTENTION, LockKind.SUPREMUM]


class Footprint:
    """What a block locked; readable when the block has ended, and it stays so.

    `database` and `isolation` name the circumstances. `complete` is False where the server cut its list short;
    `unseen` says what this database does not show at all.
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
                "this lock footprint is not there yet: it is read when its block ends without an error. "
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
        return tuple(lock for lock in self.locks if lock.kind in _HAS_RECORD)

    @property
    def gaps(self) -> tuple[HeldLock, ...]:
        """Locks that keep others from inserting: gap, next-key and supremum locks."""
        return tuple(lock for lock in self.locks if lock.kind in _HAS_GAP)

    @property
    def tables(self) -> tuple[HeldLock, ...]:
        """Locks on whole tables. Those of InnoDB that begin with I, and PostgreSQL's Row...Lock, stop no rows."""
        return tuple(lock for lock in self.locks if lock.kind is LockKind.TABLE)

    def __str__(self) -> str:
        return words.text(self)

    def __repr__(self) -> str:
        return f"<Footprint of {self.database}: {'not read yet' if self._locks is None else words.counts(self)}>"

    def as_json(self) -> dict[str, Any]:
        """The same as values that json.dumps() takes; `version` goes up when their meaning changes."""
        return words.as_json(self)

    def as_svg(self) -> str:
        """A picture of every index that was touched: entries in order, what is locked of them, and the gaps."""
        return picture.svg(self)

    def _fill(self, before: HeldLocks, after: HeldLocks) -> None:
        self._locks = tuple(sorted(after.locks - before.locks, key=_place))
        self.isolation, self.complete = after.isolation, before.complete and after.complete


@contextmanager
def lock_footprint(using: str | None = None) -> Iterator[Footprint]:
    """Which rows, index entries and gaps the statements of the block locked, for this session and transaction only.

    What the transaction held before is left out; what a block before locked already cannot be locked again. Reads the
    server's lock tables twice (on PostgreSQL also the tables whose rows were locked): a tool for tests and for a
    shell, not for production. If the block raises, the footprint stays unread. `using` defaults to
    JOBQUEUE["DATABASE"]. Raises TransactionRequired, and NotSupported where the server does not show locks or the
    account may not see them; both before the block is entered.
    """
    alias = alias_of(using)
    connection = connections[alias]
    if not connection.in_atomic_block and connection.get_autocommit():
        raise TransactionRequired(
            f"lock_footprint() was called outside transaction.atomic() on {alias!r}: locks would end with each "
            "statement. Nothing was run; put it inside the block."
        )
    server = vendor(alias)
    before = server.held_locks(connection)
    footprint = Footprint(server.name, server.held_unseen)
    yield footprint
    footprint._fill(before, server.held_locks(connection))


@contextmanager
def assert_locks_at_most(
    *, rows: int | None = None, gaps: int | None = None, records: int | None = None, using: str | None = None
) -> Iterator[Footprint]:
    """lock_footprint() that raises AssertionError, with the whole footprint, if the block locked more than that.

    None = any number. Also raised when the server cut its list short: more may have been locked than it shows.
    """
    limits = {"rows": rows, "gaps": gaps, "records": records}
    wanted = {what: check_int(most, what, 0) for what, most in limits.items() if most is not None}
    if not wanted:
        raise InvalidValue("assert_locks_at_most() needs rows, gaps or records. Nothing was run.")
    with lock_footprint(using) as footprint:
        yield footprint
    found: dict[str, Sequence[HeldLock]] = {what: getattr(footprint, what) for what in wanted}
    over = [f"{len(locks)} {what} instead of at most {wanted[what]}" for what, locks in found.items()]
    over = [text for text, what in zip(over, found, strict=True) if len(found[what]) > wanted[what]]
    if not footprint.complete:
        over.append("the server did not list all of them")
    if over:
        raise AssertionError(f"the block locked {'; '.join(over)}.\n{footprint}")


def _place(lock: HeldLock) -> tuple[Any, ...]:
    last = lock.kind is LockKind.SUPREMUM or (lock.key or "").startswith("supremum")
    return lock.table, lock.index != "", lock.index, last, words.sortable(lock.key), _ORDER.index(lock.kind), lock.mode
