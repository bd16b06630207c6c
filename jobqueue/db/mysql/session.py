"""State of a session on MySQL and MariaDB: whether a transaction is open in it, and how to reset it."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.mysql.server import error_number

# Transaction characteristics cannot be changed now; not in this state of an XA transaction.
_REFUSED_INSIDE = {1568, 1399}
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # bits of the status that MySQL sends with every answer


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """PyMySQL keeps the server's status. Else the server is asked: one round trip."""
    session: Any = connection.connection
    status = getattr(session, "server_status", None)
    if isinstance(status, int):
        return bool(status & _IN_TRANSACTION or not status & _AUTOCOMMIT)
    by_driver = getattr(session, "get_autocommit", None)
    if by_driver is not None and not by_driver():
        return True
    wrapper: Any = connection
    try:
        with session.cursor() as cursor:
            # No query reports it on both servers; this is refused inside a transaction, and changes nothing outside.
            cursor.execute("SET TRANSACTION READ WRITE")
    except wrapper.Database.Error as error:
        if error_number(error) in _REFUSED_INSIDE:
            return True
        raise
    return False


def reset(connection: BaseDatabaseWrapper) -> bool:
    """COM_CHANGE_USER to the same user, which is a new login on the old socket; mysqlclient only."""
    session: Any = connection.connection
    change_user = getattr(session, "change_user", None)
    wanted = connection.get_connection_params()
    if change_user is None or not {"user", "database", "charset"} <= wanted.keys() or "read_default_file" in wanted:
        return False
    change_user(wanted["user"], wanted.get("password", wanted.get("passwd", "")), wanted["database"])
    # What the driver does for a new connection.
    session.set_character_set(wanted["charset"], wanted.get("collation", ""))
    if wanted.get("sql_mode"):
        session.set_sql_mode(wanted["sql_mode"])
    if wanted.get("init_command"):
        with session.cursor() as cursor:
            cursor.execute(wanted["init_command"])
    return True
