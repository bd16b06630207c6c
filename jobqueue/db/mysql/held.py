"""The locks of a session on MySQL, from performance_schema.data_locks."""

from __future__ import annotations

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import first_arg
from jobqueue.db.lock_facts import HeldLock, HeldLocks, LockKind, innodb_lock
from jobqueue.exceptions import NotSupported

_DENIED = {1044, 1142, 1143, 1227, 1370}
_SQL = (
    "SELECT IF(object_schema = DATABASE(), object_name, CONCAT(object_schema, '.', object_name)), index_name, "
    "lock_type, lock_mode, lock_data FROM performance_schema.data_locks "
    "WHERE engine = 'INNODB' AND thread_id = PS_CURRENT_THREAD_ID()"
)
_ISOLATION = (
    "SELECT COALESCE((SELECT isolation_level FROM performance_schema.events_transactions_current "
    "WHERE thread_id = PS_CURRENT_THREAD_ID() AND state = 'ACTIVE' LIMIT 1), @@transaction_isolation)"
)


def mysql_held(connection: BaseDatabaseWrapper) -> HeldLocks:
    """This session's locks. Raises NotSupported with performance_schema off, or without SELECT on data_locks."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@performance_schema")
        if not cursor.fetchone()[0]:
            raise NotSupported(
                "performance_schema is off on this server, and MySQL shows locks nowhere else. Nothing was changed; "
                "start the server with performance_schema=ON (its default), or look on another server."
            )
        try:
            cursor.execute(_ISOLATION)
            isolation = str(cursor.fetchone()[0]).lower().replace("-", " ")
            cursor.execute(_SQL)
        except Error as error:
            if first_arg(error) in _DENIED:
                raise NotSupported(
                    f"this account may not read the locks in performance_schema ({error}). Nothing was changed; "
                    "GRANT SELECT ON performance_schema.* TO it."
                ) from error
            raise
        return HeldLocks(frozenset(_lock(*row) for row in cursor.fetchall()), isolation)


def _lock(table: str, index: str | None, lock_type: str, mode: str, data: str | None) -> HeldLock:
    if lock_type == "TABLE" or index is None:
        return HeldLock(table, "", LockKind.TABLE, mode)
    return innodb_lock(table, index, frozenset(mode.split(",")), data)
