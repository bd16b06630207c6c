"""What a session of the server is left with by code that is not ours, and how it becomes as good as new."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import first_arg

# Transaction characteristics cannot be changed now; not in this state of an XA transaction.
_REFUSED_INSIDE = {1568, 1399}
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # bits of the status that MySQL sends with every answer


class Sessions:
    """For a database we know nothing about; each subclass is one kind of database."""

    def in_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the session has a transaction open, whatever Django knows of it. Any error may be raised."""
        return False

    def reset(self, connection: BaseDatabaseWrapper) -> bool:
        """Undo all that was set, locked or made in the session, so that Django can begin with it as with a new one.

        False: that is not possible here. Any error may be raised; the session must then be closed.
        """
        return False


class PostgreSQLSessions(Sessions):
    """psycopg knows what the server said about the transaction; DISCARD ALL does the rest."""

    def in_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Everything but idle: a transaction that failed, and a statement whose answer nobody has read."""
        session: Any = connection.connection
        return bool(session.info.transaction_status != 0)

    def reset(self, connection: BaseDatabaseWrapper) -> bool:
        """One round trip. What is set in the driver and not in the server stays, so such a session is given up."""
        session: Any = connection.connection
        wrapper: Any = connection
        level = wrapper.isolation_level if "isolation_level" in connection.settings_dict["OPTIONS"] else None
        # psycopg and psycopg2 have a name each.
        read_only = getattr(session, "read_only", None) or getattr(session, "readonly", None)
        if read_only or session.deferrable or session.isolation_level != level:
            return False
        if self.in_transaction(connection):
            return False
        with session.cursor() as cursor:
            cursor.execute("DISCARD ALL")
        return True


class MySQLSessions(Sessions):
    """MySQL and MariaDB, by what the driver offers."""

    def in_transaction(self, connection: BaseDatabaseWrapper) -> bool:
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
                # No query tells it on both servers; inside a transaction this is refused, and elsewhere the default.
                cursor.execute("SET TRANSACTION READ WRITE")
        except wrapper.Database.Error as error:
            if first_arg(error) in _REFUSED_INSIDE:
                return True
            raise
        return False

    def reset(self, connection: BaseDatabaseWrapper) -> bool:
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


class SQLiteSessions(Sessions):
    """A new connection costs little: none is reset."""

    def in_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """The driver knows."""
        session: Any = connection.connection
        return bool(session.in_transaction)


_UNKNOWN = Sessions()
_BY_VENDOR = {"postgresql": PostgreSQLSessions(), "mysql": MySQLSessions(), "sqlite": SQLiteSessions()}


def sessions_of(connection: BaseDatabaseWrapper) -> Sessions:
    """What to ask about the session of `connection`; finding it out needs none."""
    return _BY_VENDOR.get(connection.vendor, _UNKNOWN)
