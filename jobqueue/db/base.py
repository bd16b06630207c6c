"""What the product asks of a database; the subclasses answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.binary import Parameters, place
from jobqueue.db.brief_waits import BriefWaits
from jobqueue.db.held import HeldLocks
from jobqueue.db.lock_report import LockMonitor
from jobqueue.db.seeks import Seeks
from jobqueue.exceptions import NotSupported, StaleSnapshot

M = TypeVar("M", bound=models.Model)
Q = TypeVar("Q", bound=models.QuerySet[Any, Any])


class Fault(Enum):
    """What an error of the database means for the transaction that met it."""

    TRANSIENT = "transient"  # rolled back by the server: redo the whole transaction
    GONE = "gone"  # no usable connection: close it, connect again, then redo if that is safe


class Vendor(Parameters, BriefWaits, Seeks):
    """Answers that hold for a database we know nothing about; each subclass is one database."""

    name = "unsupported"
    supported = False
    #: how workers claim, for banners; and in words, for checks
    claim_strategy = "conditional-update"
    claim_form = "an UPDATE whose row count tells whether the job was free"
    #: whether a second writer of the same process would only wait
    single_writer = False
    #: most rows of one INSERT
    insert_rows_max = 1000
    column_types: dict[str, str] = {}
    #: the server's time in UTC at the start of the statement; %% because parameters are always passed
    now_sql = "CURRENT_TIMESTAMP"
    now_plus_sql = ""
    #: an integer column that no index may be used for
    unindexed_sql = "%(expressions)s"
    #: suffix of a read that sees the newest committed row and locks only its index entry
    shared_lock_sql = ""
    #: suffix of a read that keeps others from changing the row until the transaction ends
    for_share_sql = ""
    #: suffix of an INSERT that then returns the id, where the driver does not tell it by itself
    returning_id_sql = ""
    #: an UPDATE can lock rows, write them and return them, so that a claim is one statement
    takes_at_once = False
    #: sessions can send each other words (NOTIFY)
    notifies = False
    #: an instant for a list of selected columns: as text, or microseconds since 1970, where the driver parses slowly
    selected_instant_sql = "%(expressions)s"
    #: "%(instant)s" bounded to the years that Python knows, where columns can hold others; None: as it is
    bounded_instant_sql: str | None = None
    #: an UPDATE of an indexed column adds an entry to every index, which all who look for the row must pass by
    copies_updated_rows = False
    #: instants are kept without a zone, and mean UTC
    stores_utc_naive = True

    def lock_rows(self, queryset: Q) -> Q:
        """The same rows, locked; rows that another transaction has locked are left out."""
        return queryset.select_for_update(skip_locked=True)

    def within(self, connection: BaseDatabaseWrapper, seconds: float, work: Callable[[], Any]) -> Any:
        """What `work` gives; None if it waited for a lock for longer. Only where a conflict leaves locks behind."""
        return work()

    def lock_own(self, queryset: QuerySet[M], *, skip_locked: bool) -> QuerySet[M]:
        """The same rows, locked, but where the database can tell them apart not those that they are joined with."""
        connection = connections[queryset.db]
        # Others need the joined ones too, and PostgreSQL refuses to lock what an outer join may not find.
        of = ("self",) if connection.features.has_select_for_update_of else ()
        return queryset.select_for_update(skip_locked=skip_locked, of=of)

    def lock_first(self, queryset: QuerySet[M], count: int, *, skip_locked: bool = True) -> list[M]:
        """The first `count` rows, locked, as lock_own(); those that others have locked are skipped, or waited for."""
        return list(self.lock_own(queryset, skip_locked=skip_locked)[:count])

    def update_by_key(self, queryset: QuerySet[Any], changes: Mapping[str, Any]) -> int:
        """queryset.update(**changes) for rows that the queryset names by key; how many there were."""
        return queryset.update(**changes)

    def update_locked(self, queryset: QuerySet[Any], changes: Mapping[str, Any]) -> int:
        """update_by_key() for rows that this transaction has locked: nobody else changes what the queryset asks of."""
        return self.update_by_key(queryset, changes)

    def by_key_sql(self, connection: BaseDatabaseWrapper, table: str, sql: str) -> str:
        """The UPDATE of update_by_key(), as text, from one that Django has written."""
        return sql

    def delete_by_key(self, queryset: QuerySet[Any], keys: Sequence[int]) -> int:
        """Delete the rows with these primary keys, reading no others; how many there were."""
        return queryset.filter(pk__in=keys).delete()[0]

    def force_index(self, queryset: Q, index: str) -> Q:
        """The same query, bound to `index` where the database takes hints."""
        return queryset

    @contextmanager
    def transaction(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """A transaction of ours that reads and then writes; a savepoint inside a caller's transaction."""
        with transaction.atomic(using=connection.alias):
            yield

    @contextmanager
    def timed_transaction(self, connection: BaseDatabaseWrapper, lock_timeout_seconds: float | None) -> Iterator[None]:
        """A caller's outermost transaction, in which no wait for a lock is longer than that; None = as configured."""
        with transaction.atomic(using=connection.alias):
            yield

    def undone_by(self, connection: BaseDatabaseWrapper, errors: Sequence[BaseException]) -> BaseException | None:
        """Which of the `errors` of this transaction has undone all of it, though its owner goes on; None if none."""
        return None

    def insert(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> list[int]:
        """Insert `rows` with one statement; their ids in the order of the rows."""
        sql, params = self._insert_sql(connection, table, columns, rows)
        with transaction.mark_for_rollback_on_error(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(sql + " RETURNING id", params)
            # No standard promises the order of RETURNING, but ids are handed out in the order of the rows.
            return sorted(row[0] for row in cursor.fetchall())

    def insert_one(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], row: Sequence[Any]
    ) -> tuple[int, Any]:
        """Insert one row; its id, and created_at as the database gave it, None where the INSERT cannot tell."""
        sql, params = self._insert_sql(connection, table, columns, [row])
        with transaction.mark_for_rollback_on_error(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(sql + " RETURNING id, created_at", params)
            (found,) = cursor.fetchall()
            return found[0], found[1]

    def read_latest_id(self, connection: BaseDatabaseWrapper, table: str, queue: str, key: bytes) -> int | None:
        """The id of the committed row with this queue and dedupe key, whatever this transaction's snapshot shows."""
        quote = connection.ops.quote_name
        digits, name = self.binary_parameter(connection, key), self.text_parameter(connection, queue)
        where = f"queue = {place(name)} AND dedupe_key = {place(digits)}"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {quote(table)} WHERE {where} {self.shared_lock_sql}", [name, digits])
            row = cursor.fetchone()
        return row[0] if row else None

    def add_to_counter(self, connection: BaseDatabaseWrapper, table: str, key: str, shard: int, n: int) -> None:
        """Add `n` to one part of a counter, which is made if need be; one statement."""
        name = connection.ops.quote_name(table)
        with transaction.mark_for_rollback_on_error(using=connection.alias), connection.cursor() as cursor:
            counter = self.text_parameter(connection, key)
            sql = f"INSERT INTO {name} (counter_key, shard, total) VALUES ({place(counter)}, %s, %s) "
            cursor.execute(sql + self._or_add_sql(name), [counter, shard, n, n])

    def _or_add_sql(self, name: str) -> str:
        return f"ON CONFLICT (counter_key, shard) DO UPDATE SET total = {name}.total + %s"

    def fault(self, error: BaseException) -> Fault | None:
        """What to do about `error`; None = it is not the database's weather, let it out."""
        return None

    def never_sent(self, error: BaseException) -> bool:
        """Whether the statement that met this Fault.GONE surely did not reach the server."""
        return False

    def hold_row_sql(self, table: str, column: str, same: str) -> str:
        """INSERT of a row with this key (%s), or a lock on the one that is there, until the transaction ends."""
        return (
            f"INSERT INTO {table} ({column}) VALUES (%s) ON CONFLICT ({column}) DO UPDATE SET {same} = {table}.{same}"
        )

    def error_code(self, error: BaseException) -> str:
        """The database's own code of an error, for counters and logs."""
        return type(error).__name__

    def take_mutex(self, connection: BaseDatabaseWrapper, table: str, key: str, timeout_seconds: float | None) -> bool:
        """Lock the row of `key`, made if need be, until the caller's transaction ends; False = not got in time.

        None waits, 0 tries once; after False the transaction goes on. Raises StaleSnapshot where this transaction's
        reads are older than the last holder's commit.
        """
        raise NotSupported(f"{self.name} is not known to lock rows safely. Nothing was locked.")

    def begin_within(self, connection: BaseDatabaseWrapper, block: Any, timeout_seconds: float) -> bool:
        """Enter `block`, a transaction() of this connection; False where that waited for longer in vain."""
        block.__enter__()
        return True

    def insert_once(
        self, connection: BaseDatabaseWrapper, table: str, key: Any, sql: str, params: Sequence[Any], timeout: float
    ) -> bool | None:
        """Whether the INSERT found the unique column `digest` free; None: a transaction has `key` and goes on.

        Waits for it up to `timeout` seconds, 0 = not at all. After False and None the caller's transaction goes on.
        """
        raise NotSupported(f"{self.name} is not known to keep unique keys safely. Nothing was written.")

    def named_lock_problem(self, connection: BaseDatabaseWrapper) -> str | None:
        """Why get_named_lock() is unsafe here, the first half of a sentence; None if it is safe."""
        return f"{self.name} has no locks by name"

    def named_lock_scope(self, connection: BaseDatabaseWrapper) -> str:
        """What must go into a name so that other databases of the same server do not meet it."""
        return ""

    def get_named_lock(self, connection: BaseDatabaseWrapper, name: str, wait_seconds: float | None) -> bool:
        """Whether this session got the lock; may wait for less than `wait_seconds`, None = any time."""
        raise NotImplementedError

    def refuses_named_lock(self, error: BaseException) -> bool:
        """Whether get_named_lock() met a circle of locks by name, or another end of its wait."""
        return False

    def release_named_lock(self, connection: BaseDatabaseWrapper, name: str) -> bool:
        """Whether this session held the lock; now nobody does."""
        raise NotImplementedError

    #: who waits for whom, deadlocks, slow statements
    monitor = LockMonitor()
    #: what held_locks() cannot know here, for people
    held_unseen = ""

    def held_locks(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """The locks that this session's transaction holds. Raises NotSupported where the server does not tell."""
        raise NotSupported(
            f"{self.name} has no row locks to show: a transaction that writes locks the whole database. "
            "Nothing was changed; look at locks on the database that you use in production."
        )

    def notify(self, connection: BaseDatabaseWrapper, channel: str, text: str) -> None:
        """Send `text` to every session that listens to `channel`, when the transaction commits. Needs `notifies`."""
        raise NotImplementedError

    def is_pooled(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether a pooler stands between driver and server, and may change the session between transactions."""
        return False

    def listen(self, connection: BaseDatabaseWrapper, channel: str) -> None:
        """From now on this session gets what is sent to `channel`. Needs `notifies`."""
        raise NotImplementedError

    def heard(self, connection: BaseDatabaseWrapper, seconds: float) -> list[str]:
        """What came in since the last call; waits up to `seconds` for something. Needs `notifies`."""
        raise NotImplementedError

    def isolation(self, connection: BaseDatabaseWrapper) -> str:
        """The isolation level of the session, in the server's words."""
        return "serializable"

    def problems(self, connection: BaseDatabaseWrapper) -> Iterator[tuple[str, str, str]]:
        """What is wrong with the server or session for a queue: (check id, text, hint)."""
        return iter(())

    def binary_collation(self, connection: BaseDatabaseWrapper) -> str | None:
        """The collation for names: byte for byte, and without padding where the server has one like that."""
        return None

    def next_id(self, connection: BaseDatabaseWrapper, table: str) -> int:
        """The lowest id that the next row can get."""
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT MAX(id) FROM {connection.ops.quote_name(table)}")
            return int(cursor.fetchone()[0] or 0) + 1

    def describe(self, connection: BaseDatabaseWrapper) -> str:
        """Product and version for people."""
        version = ".".join(str(part) for part in connection.get_database_version())
        return f"{self.name} {version}"

    def _insert_sql(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> tuple[str, list[Any]]:
        quote = connection.ops.quote_name
        names = ", ".join(quote(c) for c in columns)
        values = ", ".join("(" + ", ".join(map(place, row)) + ")" for row in rows)
        return f"INSERT INTO {quote(table)} ({names}) VALUES {values}", [value for row in rows for value in row]


def stale_snapshot(key: str) -> StaleSnapshot:
    """The error for a transaction that read before it locked `key`."""
    return StaleSnapshot(
        f"mutex {key}: this transaction read something before, and its reads still show the state before the last "
        "holder committed. Roll it back and begin again with mutex() before the first read, or use READ COMMITTED."
    )


def first_arg(error: BaseException) -> Any:
    """The error number that MySQL drivers put first; None elsewhere."""
    return error.args[0] if error.args else None
