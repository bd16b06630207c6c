"""Row locks by key and GET_LOCK, on MySQL and MariaDB."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from django.db import Error, IntegrityError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.lock_dialect import LockDialect, M, MutexTable, T, UniqueInsert, stale_snapshot, wait_ended
from jobqueue.db.mysql import hints
from jobqueue.db.mysql.mutex import CHANGED, NOT_YET, MutexOfMySQL
from jobqueue.db.mysql.server import error_number
from jobqueue.db.parameters import placeholder, readable
from jobqueue.db.sockets import one_value

# The statement's time is over (MariaDB, MySQL), KILL QUERY.
_LIMITS = {1969, 3024, 1317}
# Deadlock, row changed (MariaDB), refused by a cluster: the server has rolled the whole transaction back.
_UNDOES = {1213, 1020, 1180, 3101}
# A longer wait is asked for again: a driver's read timeout would cut the connection, and signals wait for the answer.
_SLICE_SECONDS = 5.0
# How many more keys than wanted are read: those that others have locked are passed over.
_SPARE_KEYS = 20
# Set while the transaction's waits are bounded from outside: a mutex without a timeout of its own must not ask again.
_BOUNDED = "_jobqueue_bounded"


class MySQLLocks(LockDialect):
    """MySQL 8.0 and later; MariaDBLocks inherits from it."""

    name = "MySQL"
    #: the shortest lock wait timeout that the server accepts
    least_lock_wait_seconds = 1.0
    #: the error of a statement with NOWAIT
    nowait_error = 3572

    def lock_first(self, queryset: QuerySet[M], count: int, *, skip_locked: bool = True) -> list[M]:
        """Find without locks, then lock by key: a sort locks every row it reads, and few rows are often sorted."""
        if not skip_locked:
            return super().lock_first(queryset, count, skip_locked=False)

        def lock(keys: list[Any]) -> list[M]:
            return list(self.lock_own(hints.force_index(queryset.filter(pk__in=keys), "PRIMARY"), skip_locked=True))

        return self.find_and_lock(queryset, count, lock)

    def find_and_lock(self, queryset: QuerySet[M], count: int, lock: Callable[[list[Any]], list[M]]) -> list[M]:
        """The first `count` rows that `lock` gets among keys found by a plain read, which locks nothing."""
        rows: list[M] = []
        tried: set[Any] = set()
        window = count + _SPARE_KEYS
        while len(rows) < count:
            found = list(queryset.values_list("pk", flat=True)[:window])
            fresh = [key for key in found if key not in tried]
            while fresh and len(rows) < count:
                some = fresh[: count - len(rows)]
                del fresh[: len(some)]
                tried.update(some)
                rows += lock(some)
            if len(found) < window:
                break
            window *= 8
        return rows

    update_locked = staticmethod(hints.update_by_key)
    #: the key of a mutex as a statement takes it
    mutex_parameter = staticmethod(readable)

    def take_mutex(
        self, connection: BaseDatabaseWrapper, rows: MutexTable, key: str, timeout_seconds: float | None
    ) -> bool:
        """Row lock on the primary key, in the caller's transaction; a missing row is committed elsewhere first."""
        row = MutexOfMySQL(connection, rows, key, self.mutex_parameter(key), nowait=timeout_seconds == 0)
        row.make()
        waiting = self._lock_wait(connection, timeout_seconds) if timeout_seconds else nullcontext()
        with transaction.mark_for_rollback_on_error(using=connection.alias), waiting:
            while True:
                try:
                    row.take()
                except OperationalError as error:
                    if error_number(error) == CHANGED:
                        raise stale_snapshot(key) from error
                    if error_number(error) not in NOT_YET | _LIMITS or self._rolled_back(connection):
                        raise
                    if timeout_seconds is not None:
                        return False
                    if error_number(error) in _LIMITS:
                        raise wait_ended(key, error) from error
                    if getattr(connection, _BOUNDED, False):
                        raise
                else:
                    return True

    def insert_once(self, connection: BaseDatabaseWrapper, row: UniqueInsert, timeout_seconds: float) -> bool | None:
        """Lock waits are whole seconds; "not at all" is a look with NOWAIT, where that leaves no gap lock behind."""
        look = timeout_seconds == 0 and self.least_lock_wait_seconds

        def insert() -> bool:
            with connection.cursor() as cursor:
                try:
                    if look and self._locks_no_gaps(connection):
                        where = f"{row.column} = {placeholder(row.key)}"
                        cursor.execute(f"SELECT 1 FROM {row.table} WHERE {where} FOR UPDATE NOWAIT", [row.key])
                    cursor.execute(row.sql, row.params)
                except IntegrityError as error:
                    if error_number(error) != 1062:
                        raise
                    return False
            return True

        return self.run_within(connection, timeout_seconds, insert)

    def being_inserted(
        self, connection: BaseDatabaseWrapper, model: type[M], columns: Sequence[str], keys: Sequence[tuple[int, ...]]
    ) -> set[tuple[int, ...]]:
        """By a look with NOWAIT, in a transaction at READ COMMITTED, where it leaves no gap lock behind."""
        quote = connection.ops.quote_name
        names = ", ".join(map(quote, columns))

        def is_free(some: Sequence[tuple[int, ...]]) -> bool:
            values = ", ".join(f"({', '.join(map(str, key))})" for key in some)
            table = quote(model._meta.db_table)
            with connection.cursor() as cursor:
                try:
                    cursor.execute(f"SELECT 1 FROM {table} WHERE ({names}) IN ({values}) FOR UPDATE NOWAIT")
                    cursor.fetchall()
                except OperationalError as error:
                    if error_number(error) != self.nowait_error:
                        raise
                    return False
            return True

        if not keys or is_free(keys):
            return set()
        return set(keys) if len(keys) == 1 else {key for key in keys if not is_free([key])}

    def _locks_no_gaps(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether this transaction surely runs at READ COMMITTED; it has read something before.

        The session's level need not be that of a caller's transaction, which only performance_schema reports.
        """
        if not connection.savepoint_ids:
            return True
        with connection.cursor() as cursor, suppress(Error):
            cursor.execute(
                "SELECT 1 FROM performance_schema.events_transactions_current WHERE THREAD_ID = PS_CURRENT_THREAD_ID() "
                "AND STATE = 'ACTIVE' AND ISOLATION_LEVEL = 'READ COMMITTED'"
            )
            return cursor.fetchone() is not None
        return False

    def run_within(self, connection: BaseDatabaseWrapper, seconds: float, work: Callable[[], T]) -> T | None:
        """A session that received a duplicate key holds a shared lock on its row, and waits for those of others."""
        with self._lock_wait(connection, max(seconds, self.least_lock_wait_seconds)):
            try:
                return work()
            except OperationalError as error:
                if error_number(error) not in NOT_YET or self._rolled_back(connection):
                    raise
                return None

    @contextmanager
    def timed_transaction(self, connection: BaseDatabaseWrapper, lock_timeout_seconds: float | None) -> Iterator[None]:
        """innodb_lock_wait_timeout of the session, put back when the transaction has ended."""
        if lock_timeout_seconds is None:
            with transaction.atomic(using=connection.alias):
                yield
            return
        with self._lock_wait(connection, lock_timeout_seconds):
            setattr(connection, _BOUNDED, True)
            try:
                with transaction.atomic(using=connection.alias):
                    yield
            finally:
                setattr(connection, _BOUNDED, False)

    @contextmanager
    def _brief_transaction(self, connection: BaseDatabaseWrapper, lock_seconds: float) -> Iterator[None]:
        """innodb_lock_wait_timeout, in whole seconds; remembered by the session, which spares a round trip."""
        least = f"CAST(LEAST(@@SESSION.innodb_lock_wait_timeout, {math.ceil(lock_seconds)}) AS UNSIGNED)"
        before = "@jobqueue_lock_wait = @@SESSION.innodb_lock_wait_timeout"
        with connection.cursor() as cursor:
            cursor.execute(f"SET {before}, SESSION innodb_lock_wait_timeout = {least}")
            restore = "SET SESSION innodb_lock_wait_timeout = @jobqueue_lock_wait"
            with _then(cursor, restore), transaction.atomic(using=connection.alias):
                yield

    def is_lock_timeout(self, error: BaseException) -> bool:
        return error_number(error) in NOT_YET

    def rollback_cause(self, connection: BaseDatabaseWrapper, errors: Sequence[BaseException]) -> BaseException | None:
        """A deadlock rolls everything back, a lock timeout its statement, unless innodb_rollback_on_timeout is on."""
        for error in errors:
            code = error_number(error)
            if code in _UNDOES or (code == 1205 and self._rolled_back(connection)):
                return error
        return None

    @contextmanager
    def _lock_wait(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """Lock waits of `seconds`, which the server counts in whole ones."""
        with connection.cursor() as cursor:
            # Read, and not kept in a variable of the session: a mutex with a timeout may stand in such a transaction.
            cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
            (before,) = cursor.fetchone()
            cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", [math.ceil(seconds)])
            with _then(cursor, f"SET SESSION innodb_lock_wait_timeout = {before}"):
                yield

    def _rolled_back(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the server rolls whole transactions back for a lock timeout, and so has rolled back the caller's."""
        return bool(one_value(connection, "SELECT @@innodb_rollback_on_timeout"))

    def named_lock_problem(self, connection: BaseDatabaseWrapper) -> str | None:
        """Clusters with several writers: GET_LOCK holds on one node only."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SHOW VARIABLES WHERE Variable_name IN "
                "('wsrep_on', 'wsrep_provider', 'group_replication_group_name', "
                "'group_replication_single_primary_mode')"
            )
            return cluster_problem(dict(cursor.fetchall()))

    def named_lock_scope(self, connection: BaseDatabaseWrapper) -> str:
        """The database's name: GET_LOCK has one set of names per server."""
        return str(connection.settings_dict["NAME"])

    def get_named_lock(self, connection: BaseDatabaseWrapper, name: str, wait_seconds: float | None) -> bool:
        """GET_LOCK, for a slice of the wait; MySQL counts whole seconds."""
        wait = _SLICE_SECONDS if wait_seconds is None else min(_SLICE_SECONDS, wait_seconds)
        return bool(one_value(connection, "SELECT GET_LOCK(%s, %s)", [name, math.ceil(wait)]) == 1)

    def refuses_named_lock(self, error: BaseException) -> bool:
        """3058: a deadlock of GET_LOCKs, for which MySQL rolls nothing back."""
        return bool(error_number(error) == 3058)

    def release_named_lock(self, connection: BaseDatabaseWrapper, name: str) -> bool:
        """RELEASE_LOCK; 0 and NULL mean that it was not this session's."""
        return bool(one_value(connection, "SELECT RELEASE_LOCK(%s)", [name]) == 1)


@contextmanager
def _then(cursor: Any, restore: str) -> Iterator[None]:
    """Run `restore` at the end. After an error its own one is ignored: a connection that has gone has no setting."""
    try:
        yield
    except BaseException:
        with suppress(Error):
            cursor.execute(restore)
        raise
    cursor.execute(restore)


def cluster_problem(variables: dict[str, str]) -> str | None:
    """Why GET_LOCK is unsafe on a server with these variables; None if it is safe."""
    galera = variables.get("wsrep_on") == "ON" and variables.get("wsrep_provider", "none") not in ("", "none")
    if galera:
        return "this server is a node of a Galera cluster, and another node does not see its GET_LOCK"
    single_primary = variables.get("group_replication_single_primary_mode")
    if variables.get("group_replication_group_name") and single_primary == "OFF":
        return "this server is one of several primaries of a group, and the others do not see its GET_LOCK"
    return None
