"""What the product asks of a database about locks: rows of mutexes, named locks, lock timeouts. Subclasses answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.statements import Parameter
from jobqueue.exceptions import LockNotAcquired, NotSupported, StaleSnapshot

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")

#: set on a connection within brief_transaction()
_BRIEF = "_jobqueue_brief"


class MutexTable(NamedTuple):
    """A table with a row for each mutex: its name, the names of its columns, and what is known of deleted rows."""

    table: str
    key: str
    takes: str  # each holder adds one
    taken_at: str
    created_at: str
    deletions_sql: str  # the SELECT of a number that every deletion of rows raises; no row before the first deletion
    no_deletion_sql: str  # the INSERT of that number as 0
    idle_seconds: int  # a row that nobody has taken for so long may be deleted


class UniqueInsert(NamedTuple):
    """An INSERT of one row into a table with a unique column."""

    table: str
    column: str
    key: Parameter  # the value of that column, as the driver takes it
    sql: str
    params: Sequence[Parameter]


class LockDialect:
    """The answers for a database that we know nothing about; each subclass is one database."""

    name = "this database"

    # ---- rows of querysets
    def lock_own(self, queryset: QuerySet[M], *, skip_locked: bool, nowait: bool = False) -> QuerySet[M]:
        """The same rows, locked; rows that they are joined with are left out where the database can do that."""
        connection = connections[queryset.db]
        # Other transactions need the joined rows, and PostgreSQL refuses to lock the nullable side of an outer join.
        of = ("self",) if connection.features.has_select_for_update_of else ()
        return queryset.select_for_update(skip_locked=skip_locked, nowait=nowait, of=of)

    def lock_first(self, queryset: QuerySet[M], count: int, *, skip_locked: bool = True) -> list[M]:
        """The first `count` rows, locked, as lock_own(); those that others have locked are skipped, or waited for."""
        return list(self.lock_own(queryset, skip_locked=skip_locked)[:count])

    def update_locked(self, queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
        """queryset.update(**changes) for rows that this transaction has locked: no other changes what it filters by.

        Returns how many there were.
        """
        return queryset.update(**changes)

    def being_inserted(
        self, connection: BaseDatabaseWrapper, model: type[M], columns: Sequence[str], keys: Sequence[tuple[int, ...]]
    ) -> set[tuple[int, ...]]:
        """Those of `keys`, of which no row is committed, with which other transactions are inserting rows.

        An INSERT would wait for them. Ask before each INSERT, in its transaction: on PostgreSQL those who have asked
        are told of each other. By default none: the database does not tell.
        """
        return set()

    # ---- lock timeouts
    @contextmanager
    def timed_transaction(self, connection: BaseDatabaseWrapper, lock_timeout_seconds: float | None) -> Iterator[None]:
        """A caller's outermost transaction, in which no wait for a lock is longer than that; None = as configured."""
        with transaction.atomic(using=connection.alias):
            yield

    @contextmanager
    def brief_transaction(self, connection: BaseDatabaseWrapper, lock_seconds: float) -> Iterator[None]:
        """A transaction, or a savepoint in the caller's, in which waits for locks are no longer than that.

        Nor longer than the session's own limit. Within another such block the limit of that one holds.
        """
        if getattr(connection, _BRIEF, False):
            with transaction.atomic(using=connection.alias):
                yield
            return
        setattr(connection, _BRIEF, True)
        try:
            with self._brief_transaction(connection, lock_seconds):
                yield
        finally:
            setattr(connection, _BRIEF, False)

    def _brief_transaction(
        self, connection: BaseDatabaseWrapper, lock_seconds: float
    ) -> AbstractContextManager[object, bool | None]:
        return transaction.atomic(using=connection.alias)

    def begin_within(
        self, connection: BaseDatabaseWrapper, block: AbstractContextManager[object], timeout_seconds: float
    ) -> bool:
        """Enter `block`, a transaction() of this connection; False if that waited for longer in vain."""
        block.__enter__()
        return True

    def run_within(self, connection: BaseDatabaseWrapper, seconds: float, work: Callable[[], T]) -> T | None:
        """The result of `work`; None if it waited for a lock for longer. Only where a conflict leaves locks behind."""
        return work()

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Whether `error` says that another session has kept a lock for longer than the limit."""
        return False

    def rollback_cause(self, connection: BaseDatabaseWrapper, errors: Sequence[BaseException]) -> BaseException | None:
        """Which of the `errors` made the server roll this transaction back, though the caller went on; or None."""
        return None

    # ---- unique rows
    def take_mutex(
        self, connection: BaseDatabaseWrapper, rows: MutexTable, key: str, timeout_seconds: float | None
    ) -> bool:
        """Lock the row of `key`, made if need be, until the caller's transaction ends; False = not got in time.

        None waits, 0 tries once; after False the transaction goes on. Raises StaleSnapshot where this transaction's
        reads are older than the last holder's commit.
        """
        raise NotSupported(f"{self.name} is not known to lock rows safely. Nothing was locked.")

    def insert_once(self, connection: BaseDatabaseWrapper, row: UniqueInsert, timeout_seconds: float) -> bool | None:
        """Whether the INSERT found its key free; None: another transaction has the key and has not ended.

        Waits for it up to `timeout_seconds`, 0 = not at all. After False and None the caller's transaction goes on.
        """
        raise NotSupported(f"{self.name} is not known to keep unique keys safely. Nothing was written.")

    # ---- named locks
    def named_lock_problem(self, connection: BaseDatabaseWrapper) -> str | None:
        """Why get_named_lock() is unsafe here, the first half of a sentence; None if it is safe."""
        return f"{self.name} has no locks by name"

    def named_lock_scope(self, connection: BaseDatabaseWrapper) -> str:
        """What must go into a name so that other databases of the same server do not use it as well."""
        return ""

    def get_named_lock(self, connection: BaseDatabaseWrapper, name: str, wait_seconds: float | None) -> bool:
        """Whether this session got the lock; may wait for less than `wait_seconds`, None = any time."""
        raise NotImplementedError

    def refuses_named_lock(self, error: BaseException) -> bool:
        """Whether get_named_lock() ended because of a deadlock of named locks, of which nothing is rolled back."""
        return False

    def release_named_lock(self, connection: BaseDatabaseWrapper, name: str) -> bool:
        """Whether this session held the lock; now no session does."""
        raise NotImplementedError


def stale_snapshot(key: str) -> StaleSnapshot:
    """The error for a transaction that read before it locked `key`."""
    return StaleSnapshot(
        f"mutex {key}: this transaction read something before, and its reads still show the state before the last "
        "holder committed. Roll it back and begin again with mutex() before the first read, or use READ COMMITTED."
    )


def wait_ended(key: str, error: BaseException) -> LockNotAcquired:
    """The error for a wait for `key` that a limit of the session ended, and with it the transaction."""
    return LockNotAcquired(
        f"mutex {key} was not free in time: the database ended the wait by itself ({error}). This transaction cannot "
        "go on; roll it back and try again later, raise that limit, or give the call a timeout_seconds below it."
    )
