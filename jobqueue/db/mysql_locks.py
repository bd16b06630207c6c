"""Row locks by key and GET_LOCK, on MySQL and MariaDB."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from django.db import Error, IntegrityError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import Vendor, first_arg, stale_snapshot
from jobqueue.db.binary import place
from jobqueue.db.ended_wait import wait_ended
from jobqueue.db.held import HeldLocks
from jobqueue.db.mysql_held import mysql_held
from jobqueue.db.mysql_monitor import MySQLMonitor
from jobqueue.db.mysql_mutex import CHANGED, NOT_YET, MutexOfMySQL

# The statement's time is over (MariaDB, MySQL), KILL QUERY.
_LIMITS = {1969, 3024, 1317}
# Deadlock, row changed (MariaDB), refused by a cluster: the server has rolled the whole transaction back.
_UNDOES = {1213, 1020, 1180, 3101}
# A longer wait is asked for again: a driver's read timeout would cut the connection, and signals wait for the answer.
_SLICE_SECONDS = 5.0
# Set while the transaction's waits are bounded from outside: a mutex without a timeout of its own must not ask again.
_BOUNDED = "_jobqueue_bounded"


class MySQLLocks(Vendor):
    """What MySQL and MariaDB do for jobqueue.locks."""

    monitor = MySQLMonitor()
    #: the shortest wait for a lock that the server knows
    least_lock_wait_seconds = 1.0

    def take_mutex(self, connection: BaseDatabaseWrapper, table: str, key: str, timeout_seconds: float | None) -> bool:
        """Row lock on the primary key, in the caller's transaction; a missing row is committed elsewhere first."""
        name = self.text_parameter(connection, key)
        row = MutexOfMySQL(connection, table, key, name, nowait=timeout_seconds == 0)
        row.make()
        waiting = self._lock_wait(connection, timeout_seconds) if timeout_seconds else nullcontext()
        with transaction.mark_for_rollback_on_error(using=connection.alias), waiting:
            while True:
                try:
                    row.take()
                except OperationalError as error:
                    if first_arg(error) == CHANGED:
                        raise stale_snapshot(key) from error
                    if first_arg(error) not in NOT_YET | _LIMITS or self._rolled_back(connection):
                        raise
                    if timeout_seconds is not None:
                        return False
                    if first_arg(error) in _LIMITS:
                        raise wait_ended(key, error) from error
                    if getattr(connection, _BOUNDED, False):
                        raise
                else:
                    return True

    def insert_once(
        self, connection: BaseDatabaseWrapper, table: str, key: Any, sql: str, params: Sequence[Any], timeout: float
    ) -> bool | None:
        """Lock waits are whole seconds; "not at all" is a look with NOWAIT, where that leaves no gap lock behind."""
        with connection.cursor() as cursor, self._lock_wait(connection, max(timeout, self.least_lock_wait_seconds)):
            try:
                if timeout == 0 and self.least_lock_wait_seconds and self._locks_no_gaps(connection):
                    cursor.execute(f"SELECT 1 FROM {table} WHERE digest = {place(key)} FOR UPDATE NOWAIT", [key])
                cursor.execute(sql, params)
            except IntegrityError as error:
                if first_arg(error) != 1062:
                    raise
                return False
            except OperationalError as error:
                if first_arg(error) not in NOT_YET or self._rolled_back(connection):
                    raise
                return None
        return True

    def _locks_no_gaps(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether this transaction surely runs at READ COMMITTED; it has read something before.

        The session's level need not be that of a caller's transaction, which only performance_schema tells.
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

    def within(self, connection: BaseDatabaseWrapper, seconds: float, work: Callable[[], Any]) -> Any:
        """Whoever met a duplicate key holds a shared lock on its row, and waits for those of others."""
        with self._lock_wait(connection, max(seconds, self.least_lock_wait_seconds)):
            try:
                return work()
            except OperationalError as error:
                if first_arg(error) not in NOT_YET or self._rolled_back(connection):
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
            try:
                with transaction.atomic(using=connection.alias):
                    yield
            except BaseException:
                # A connection that has gone has forgotten the setting by itself.
                with suppress(Error):
                    cursor.execute(restore)
                raise
            cursor.execute(restore)

    def waited_in_vain(self, error: BaseException) -> bool:
        """1205, or NOWAIT."""
        return first_arg(error) in NOT_YET

    def undone_by(self, connection: BaseDatabaseWrapper, errors: Sequence[BaseException]) -> BaseException | None:
        """A deadlock undoes everything; a lock timeout its statement only, unless the server is told otherwise."""
        for error in errors:
            code = first_arg(error)
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
            restore = f"SET SESSION innodb_lock_wait_timeout = {before}"
            try:
                yield
            except BaseException:
                # A connection that has gone has forgotten the setting by itself.
                with suppress(Error):
                    cursor.execute(restore)
                raise
            cursor.execute(restore)

    def _rolled_back(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the server undoes whole transactions for a lock wait, and so has undone the caller's."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@innodb_rollback_on_timeout")
            return bool(cursor.fetchone()[0])

    held_unseen = "Not shown: rows this transaction has inserted. They are locked, but listed only once somebody waits."

    def held_locks(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """performance_schema.data_locks."""
        return mysql_held(connection)

    def _or_add_sql(self, name: str) -> str:
        return "ON DUPLICATE KEY UPDATE total = total + %s"

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
        """The database's name: GET_LOCK knows one set of names per server."""
        return str(connection.settings_dict["NAME"])

    def get_named_lock(self, connection: BaseDatabaseWrapper, name: str, wait_seconds: float | None) -> bool:
        """GET_LOCK, for a slice of the wait; MySQL counts whole seconds."""
        wait = _SLICE_SECONDS if wait_seconds is None else min(_SLICE_SECONDS, wait_seconds)
        with connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, %s)", [name, math.ceil(wait)])
            return bool(cursor.fetchone()[0] == 1)

    def refuses_named_lock(self, error: BaseException) -> bool:
        """3058: a circle of GET_LOCKs, of which MySQL undoes nothing."""
        return bool(first_arg(error) == 3058)

    def release_named_lock(self, connection: BaseDatabaseWrapper, name: str) -> bool:
        """RELEASE_LOCK; 0 and NULL mean that it was not this session's."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT RELEASE_LOCK(%s)", [name])
            return bool(cursor.fetchone()[0] == 1)


def cluster_problem(variables: dict[str, str]) -> str | None:
    """Why GET_LOCK is unsafe on a server with these variables; None if it is safe."""
    galera = variables.get("wsrep_on") == "ON" and variables.get("wsrep_provider", "none") not in ("", "none")
    if galera:
        return "this server is a node of a Galera cluster, and another node does not see its GET_LOCK"
    if (
        variables.get("group_replication_group_name")
        and variables.get("group_replication_single_primary_mode") == "OFF"
    ):
        return "this server is one of several primaries of a group, and the others do not see its GET_LOCK"
    return None
