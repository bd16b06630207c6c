"""Row locks by key, rows of mutexes, and GET_LOCK, on MySQL and MariaDB."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from django.db import Error, IntegrityError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.locks import LockDialect, M, MutexTable, T, UniqueInsert, stale_snapshot, wait_ended
from jobqueue.db.mysql.errors import CHANGED, DUPLICATE_KEY, LIMITS, NOT_YET, SESSION_LOST, UNDOES, error_number
from jobqueue.db.mysql.statements import force_index, readable, update_by_key
from jobqueue.db.statements import Parameter, one_value, placeholder

# A longer wait is asked for again: a driver's read timeout would cut the connection, and signals wait for the answer.
_SLICE_SECONDS = 5.0
# How many more keys than wanted are read: those that others have locked are passed over.
_SPARE_KEYS = 20
# Set while the transaction's waits are bounded from outside: a mutex without a timeout of its own must not ask again.
_BOUNDED = "_jobqueue_bounded"
_KNOWN_MAX = 10_000
#: rows that were committed when this process looked, and until when none of them can have been swept
_known: dict[tuple[str, str, str], float] = {}
#: how long it is kept for the next use
IDLE_SECONDS = 2.0


class MySQLLocks(LockDialect):
    """MySQL 8.0.17 and later; MariaDBLocks inherits from it."""

    #: the shortest lock wait timeout that the server accepts
    least_lock_wait_seconds = 1.0
    #: the error of a statement with NOWAIT
    nowait_error = 3572

    def lock_first(self, queryset: QuerySet[M], count: int, *, skip_locked: bool = True) -> list[M]:
        """Find without locks, then lock by key: a sort locks every row it reads, and few rows are often sorted."""
        if not skip_locked:
            return super().lock_first(queryset, count, skip_locked=False)

        def lock(keys: list[Any]) -> list[M]:
            return list(self.lock_own(force_index(queryset.filter(pk__in=keys), "PRIMARY"), skip_locked=True))

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

    update_locked = staticmethod(update_by_key)
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
                    if error_number(error) not in NOT_YET | LIMITS or self._rolled_back(connection):
                        raise
                    if timeout_seconds is not None:
                        return False
                    if error_number(error) in LIMITS:
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
                    if error_number(error) != DUPLICATE_KEY:
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
            if code in UNDOES or (code == 1205 and self._rolled_back(connection)):
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


class MutexOfMySQL:
    """A key's row, which is committed by a session of its own before the caller's transaction locks it.

    If the caller inserted it, its rollback would turn the locks of the waiting sessions into gap locks, and these would
    deadlock when each of them inserts the row.
    """

    def __init__(
        self, connection: BaseDatabaseWrapper, rows: MutexTable, key: str, name: Parameter, *, nowait: bool
    ) -> None:
        self.connection, self.rows, self.key = connection, rows, key
        #: the key as a statement takes it
        self.name, self.place = name, placeholder(name)
        self.table = connection.ops.quote_name(rows.table)
        self.suffix = " NOWAIT" if nowait else ""

    def take(self) -> None:
        """Lock it and add one. Raises StaleSnapshot if this transaction's reads are older than the last holder."""
        with self.connection.cursor() as cursor:
            found = self._lock(cursor)
            if found is None:
                # Deleted since this process has seen it.
                self.make(again=True)
                found = self._lock(cursor)
            self._refuse_stale(cursor, found)
            rows = self.rows
            changes = f"{rows.takes} = {rows.takes} + 1, {rows.taken_at} = UTC_TIMESTAMP(6)"
            cursor.execute(
                f"INSERT INTO {self.table} ({rows.key}, {rows.takes}, {rows.taken_at}) "
                f"VALUES ({self.place}, 1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE {changes}"
                if found is None
                else f"UPDATE {self.table} FORCE INDEX (PRIMARY) SET {changes} WHERE {rows.key} = {self.place}",
                [self.name],
            )

    def _lock(self, cursor: Any) -> tuple[int, str, str | None] | None:
        """(takes, row as it is, row as this transaction's snapshot shows it); None where there is no row.

        The level of a transaction cannot be asked for, so all of them are compared. No plain read may come before the
        lock, it would open the snapshot before the last holder's commit: the inner one depends on the locked row.
        """
        key, takes, made = self.rows.key, self.rows.takes, self.rows.created_at
        cursor.execute(
            f"SELECT t.{takes}, CONCAT(t.{takes}, ' ', t.{made}), "
            f"(SELECT CONCAT(s.{takes}, ' ', s.{made}) FROM {self.table} AS s WHERE s.{key} = t.{key}) "
            f"FROM {self.table} AS t FORCE INDEX (PRIMARY) WHERE t.{key} = {self.place} FOR UPDATE{self.suffix}",
            [self.name],
        )
        found: tuple[int, str, str | None] | None = cursor.fetchone()
        return found

    def _refuse_stale(self, cursor: Any, found: tuple[int, str, str | None] | None) -> None:
        if found is None:
            cursor.execute(f"SELECT 1 FROM {self.table} WHERE {self.rows.key} = {self.place}", [self.name])
            takes, unseen, is_same = 0, cursor.fetchone() is None, False
        else:
            takes, unseen, is_same = found[0], found[2] is None, found[1] == found[2]
        if is_same:
            return
        # A row that was never taken, of a key that is not in the snapshot: new, unless one was deleted in between.
        if takes or not unseen or self._swept(cursor):
            raise stale_snapshot(self.key)

    def _swept(self, cursor: Any) -> bool:
        """Whether rows of mutexes have been deleted since this transaction's snapshot."""
        cursor.execute(f"{self.rows.deletions_sql} LOCK IN SHARE MODE")
        now = cursor.fetchone()
        cursor.execute(self.rows.deletions_sql)
        return bool(now != cursor.fetchone())

    def make(self, *, again: bool = False) -> None:
        """Commit the row by a session of its own, if this process has not seen it yet."""
        known = (self.connection.alias, str(self.connection.settings_dict["NAME"]), self.key)
        if not again and _known.get(known, 0.0) > time.monotonic():
            return
        try:
            made = self._make_beside()
        except OperationalError as error:
            if error_number(error) not in SESSION_LOST:
                raise
            # It was perhaps ended while it was idle. The next use opens a new one.
            made = self._make_beside()
        if made:
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[known] = time.monotonic() + self.rows.idle_seconds / 2

    def _make_beside(self) -> bool:
        with cursor_beside(self.connection.alias) as cursor:
            return cursor is not None and self._make(cursor)

    def _make(self, cursor: Any) -> bool:
        """Whether there is a row that the sweeper will leave alone for a while."""
        rows = self.rows
        young = f"TIMESTAMPADD(SECOND, -{rows.idle_seconds // 2}, UTC_TIMESTAMP(6))"
        used = f"COALESCE({rows.taken_at}, {rows.created_at})"
        cursor.execute(f"SELECT {used} > {young} FROM {self.table} WHERE {rows.key} = {self.place}", [self.name])
        found = cursor.fetchone()
        if found is not None:
            return bool(found[0])
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        try:
            cursor.execute(f"INSERT INTO {self.table} ({rows.key}) VALUES ({self.place})", [self.name])
        except IntegrityError:
            pass  # another session has just inserted it
        except OperationalError as error:
            if error_number(error) not in NOT_YET:
                raise
            return False
        return True


class Beside:
    """One session per database in this process, for one thread at a time, closed soon after its last use."""

    def __init__(self) -> None:
        self._using = threading.Lock()
        self._sessions: dict[tuple[str, str], Any] = {}
        self._last_use = 0.0
        self._closer: threading.Timer | None = None

    @contextmanager
    def cursor(self, alias: str) -> Iterator[Any]:
        """A cursor in autocommit; None where the server takes no further session."""
        with self._using:
            session = self._session(alias)
            if session is None:
                yield None
                return
            try:
                with session.cursor() as cursor:
                    yield cursor
            except Error:
                # After any error the next use opens a new session.
                self._close()
                raise
            self._last_use = time.monotonic()
            self._close_later()

    def _session(self, alias: str) -> Any:
        key = (alias, str(connections.settings[alias]["NAME"]))
        if key in self._sessions:
            return self._sessions[key]
        session: Any = connections.create_connection(alias)
        session.inc_thread_sharing()
        try:
            session.ensure_connection()
            session.set_autocommit(True)
        except OperationalError:
            session.close()
            return None
        self._sessions[key] = session
        return session

    def _close_later(self) -> None:
        if self._closer is not None:
            return
        closer = threading.Timer(IDLE_SECONDS, self._close_if_idle)
        closer.daemon = True
        try:
            closer.start()
            self._closer = closer
        except RuntimeError:
            # No thread can be started.
            self._close()

    def _close_if_idle(self) -> None:
        with self._using:
            self._closer = None
            if time.monotonic() - self._last_use >= IDLE_SECONDS:
                self._close()
            else:
                self._close_later()

    def _close(self) -> None:
        while self._sessions:
            _, session = self._sessions.popitem()
            session.close()


_inherited: list[Beside] = []
_beside = Beside()


def cursor_beside(alias: str) -> Any:
    """A `with` block with a cursor of this process's second session; None where the server accepts no more sessions."""
    return _beside.cursor(alias)


def _begin_anew() -> None:
    """The sessions of a forked process are its parent's: closing one, or letting it be collected, would end it."""
    global _beside
    _inherited.append(_beside)
    _beside = Beside()


os.register_at_fork(after_in_child=_begin_anew)
