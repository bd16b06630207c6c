"""lock_footprint(): the locks that a block has added to its transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.diagnostics import HeldLock
from jobqueue.exceptions import InvalidValue, TransactionRequired
from jobqueue.inspect import svg
from jobqueue.inspect.lock_set import LockSet, counts
from jobqueue.validation import check_int


class Footprint(LockSet):
    """What a block locked, as text, JSON and SVG."""

    def __repr__(self) -> str:
        return f"<Footprint of {self.database}: {'not read yet' if self._locks is None else counts(self)}>"

    def as_svg(self) -> str:
        """A drawing of every index that the block touched: entries in order, their locks and the gaps."""
        return svg.draw(self)


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
    diagnostics = vendor(alias).diagnostics
    before = diagnostics.held(connection)
    footprint = Footprint(diagnostics.name, diagnostics.held_unseen)
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
