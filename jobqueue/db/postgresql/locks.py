"""Row locks by key and advisory locks, on PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from django.db import OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.locks import LockDialect, M, MutexTable, T, UniqueInsert, stale_snapshot, wait_ended
from jobqueue.db.postgresql.errors import CANCELED, LOCK_TIMEOUT, sqlstate
from jobqueue.db.statements import one_value

# A longer wait is asked for again: signals wait for the answer.
_SLICE_SECONDS = 5.0
# libpq's PQTRANS_INERROR
_INERROR = 3
#: keys of one look: the server has room for some thousand locks of all sessions together
_KEYS_MAX = 100


class PostgreSQLLocks(LockDialect):
    """PostgreSQL through psycopg."""

    def take_mutex(
        self, connection: BaseDatabaseWrapper, rows: MutexTable, key: str, timeout_seconds: float | None
    ) -> bool:
        """One upsert: waits for an uncommitted row of the same key, and locks it once it is there.

        It writes, so at REPEATABLE READ a snapshot older than the last holder is refused by the server.
        """
        name = connection.ops.quote_name(rows.table)
        changes = f"{rows.takes} = {name}.{rows.takes} + 1, {rows.taken_at} = STATEMENT_TIMESTAMP()"
        sql = f"INSERT INTO {name} ({rows.key}, {rows.takes}, {rows.taken_at}) VALUES (%s, 1, STATEMENT_TIMESTAMP()) "
        sql += f"ON CONFLICT ({rows.key}) DO UPDATE SET {changes} "
        sql += "RETURNING xmax = 0 AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable')"
        try:
            with transaction.mark_for_rollback_on_error(using=connection.alias):
                take = partial(one_value, connection, sql, [key])
                found = take() if timeout_seconds is None else self._within(connection, timeout_seconds, take, CANCELED)
                if found:
                    self._refuse_swept(connection, rows)
        except OperationalError as error:
            if sqlstate(error) == "40001":
                raise stale_snapshot(key) from error
            if sqlstate(error) == CANCELED:
                raise wait_ended(key, error) from error
            raise
        return found is not None

    def _refuse_swept(self, connection: BaseDatabaseWrapper, rows: MutexTable) -> None:
        """For a row that is new: the server refuses (40001) if rows were deleted since this transaction's snapshot."""
        with connection.cursor() as cursor:
            cursor.execute(f"{rows.deletions_sql} FOR SHARE")
            if cursor.fetchone() is None:
                cursor.execute(f"{rows.no_deletion_sql} ON CONFLICT DO NOTHING")

    def being_inserted(
        self, connection: BaseDatabaseWrapper, model: type[M], columns: Sequence[str], keys: Sequence[tuple[int, ...]]
    ) -> set[tuple[int, ...]]:
        """The server does not tell. So whoever asks gets an advisory lock for each key, until its transaction ends.

        Those whose lock another session has are being inserted. Of a long list the rest is not asked about.
        """
        numbers = {_number(f"{model._meta.db_table} {key}"): key for key in keys[:_KEYS_MAX]}
        if not numbers:
            return set()
        wanted = "SELECT wanted.hash FROM unnest(%s::bigint[]) AS wanted (hash)"
        with connection.cursor() as cursor:
            cursor.execute(f"{wanted} WHERE NOT pg_try_advisory_xact_lock(wanted.hash)", [sorted(numbers)])
            return {numbers[number] for (number,) in cursor.fetchall()}

    def insert_once(self, connection: BaseDatabaseWrapper, row: UniqueInsert, timeout_seconds: float) -> bool | None:
        """ON CONFLICT DO NOTHING waits for an uncommitted row of the same key; a savepoint survives the timeout."""

        def insert() -> bool:
            with connection.cursor() as cursor:
                cursor.execute(f"{row.sql} ON CONFLICT ({row.column}) DO NOTHING", row.params)
                return bool(cursor.rowcount == 1)

        return self._within(connection, timeout_seconds, insert)

    def _within(
        self, connection: BaseDatabaseWrapper, seconds: float, work: Callable[[], T], also: str = ""
    ) -> T | None:
        """The result of `work`; None: no lock in time, and a savepoint keeps the caller's transaction usable.

        `also`: another SQLSTATE that says so.
        """
        try:
            with transaction.atomic(using=connection.alias), self._lock_wait(connection, seconds):
                return work()
        except OperationalError as error:
            if sqlstate(error) not in (LOCK_TIMEOUT, also):
                raise
            return None

    @contextmanager
    def timed_transaction(self, connection: BaseDatabaseWrapper, lock_timeout_seconds: float | None) -> Iterator[None]:
        """lock_timeout of this transaction only: behind a pooler the session is not ours."""
        limit = nullcontext() if lock_timeout_seconds is None else self._lock_wait(connection, lock_timeout_seconds)
        with transaction.atomic(using=connection.alias), limit:
            yield

    @contextmanager
    def _brief_transaction(self, connection: BaseDatabaseWrapper, lock_seconds: float) -> Iterator[None]:
        """lock_timeout of the transaction, one statement more; a savepoint that is rolled back restores it."""
        limit = f"{max(1, round(lock_seconds * 1000))}ms"
        shorter = "own::interval > interval '0' AND own::interval < %s::interval"
        with transaction.atomic(using=connection.alias):
            within = bool(connection.savepoint_ids)
            with connection.cursor() as cursor:
                # OFFSET: read before it is set.
                cursor.execute(
                    f"SELECT own, set_config('lock_timeout', CASE WHEN {shorter} THEN own ELSE %s END, true) "
                    "FROM (SELECT current_setting('lock_timeout') AS own OFFSET 0) AS now",
                    [limit, limit],
                )
                (before, _) = cursor.fetchone()
                yield
                if within:
                    cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])

    def is_lock_timeout(self, error: BaseException) -> bool:
        return sqlstate(error) == LOCK_TIMEOUT

    def rollback_cause(self, connection: BaseDatabaseWrapper, errors: Sequence[BaseException]) -> BaseException | None:
        """Any error outside a savepoint: the server would answer COMMIT with a rollback, and the driver say nothing."""
        session: Any = connection.connection
        in_error = session is not None and session.info.transaction_status == _INERROR
        return errors[-1] if in_error and errors else None

    @contextmanager
    def _lock_wait(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """Lock waits of `seconds`, 1 ms at least; after an error the rollback restores the setting."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            (before,) = cursor.fetchone()
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{max(1, round(seconds * 1000))}ms"])
            yield
            if connection.needs_rollback or self.rollback_cause(connection, [AssertionError()]) is not None:
                return
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])

    def named_lock_problem(self, connection: BaseDatabaseWrapper) -> str | None:
        """A pooler that changes the session between statements, or a pool that lends it to others as it is."""
        if connection.settings_dict.get("OPTIONS", {}).get("pool"):
            return (
                "OPTIONS['pool'] keeps the session when a connection is closed, and with it the lock, which whoever "
                "gets the session next could take once more"
            )
        if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            return (
                "DISABLE_SERVER_SIDE_CURSORS says that a transaction pooler such as PgBouncer stands in between, and "
                "there an advisory lock stays with a session that others get next"
            )
        if is_pooled(connection):
            return (
                "the server's number of this session is another one than the driver was told, so a pooler such as "
                "PgBouncer stands in between, and there an advisory lock stays with a session that others get next"
            )
        return None

    def get_named_lock(self, connection: BaseDatabaseWrapper, name: str, wait_seconds: float | None) -> bool:
        """pg_try_advisory_lock, then pg_advisory_lock for a slice of the wait; both belong to the session."""
        number = _number(name)
        if one_value(connection, "SELECT pg_try_advisory_lock(%s)", [number]):
            return True
        if wait_seconds == 0:
            return False
        wait = _SLICE_SECONDS if wait_seconds is None else min(_SLICE_SECONDS, wait_seconds)
        take = partial(one_value, connection, "SELECT pg_advisory_lock(%s)", [number])
        return self._within(connection, wait, take) is not None

    def release_named_lock(self, connection: BaseDatabaseWrapper, name: str) -> bool:
        """pg_advisory_unlock; false means that it was not this session's."""
        return bool(one_value(connection, "SELECT pg_advisory_unlock(%s)", [_number(name)]))


def _number(name: str) -> int:
    """The 64 signed bits that stand for a name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """A pooler such as PgBouncer makes up the number that the driver receives at the login."""
    connection.ensure_connection()
    session: Any = connection.connection
    return bool(one_value(connection, "SELECT pg_backend_pid()") != session.info.backend_pid)
