"""What a server that speaks MySQL's protocol has, what is wrong with it for a queue, and the state of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.callers_transaction import once_per_session
from jobqueue.db.dialect import Problem

#: the server has ended the session, or the answer was lost: shutting down, killed, gone, lost, idle for too long
SESSION_LOST = {1053, 1077, 1079, 1927, 2006, 2013, 2055, 4031}
_PADDED = "utf8mb4_bin"
# Transaction characteristics cannot be changed now; not in this state of an XA transaction.
_REFUSED_INSIDE = {1568, 1399}
#: variables for which a server refuses writes, the strictest first
_REFUSALS = ("innodb_read_only", "super_read_only", "transaction_read_only", "tx_read_only", "read_only")
# The accounts that read_only does not bind.
_EXEMPT = """
SELECT COUNT(*) FROM information_schema.user_privileges
WHERE grantee = CONCAT_WS(
  '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1))
)
AND privilege_type IN ('SUPER', 'CONNECTION_ADMIN', 'READ_ONLY ADMIN', 'READ ONLY ADMIN')
"""
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # bits of the status that MySQL sends with every answer


def collation(connection: BaseDatabaseWrapper, unpadded: str) -> str:
    """`unpadded` if the server has it, else utf8mb4_bin, which ignores spaces at the end.

    Asked once per session.
    """

    def look() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW COLLATION WHERE Collation = %s", [unpadded])
            return _PADDED if cursor.fetchone() is None else unpadded

    connection.ensure_connection()
    return once_per_session(connection, "_jobqueue_collation", look)


def padding_problem(unpadded: str) -> Problem:
    """The warning about a server without `unpadded`."""
    return Problem(
        "W025",
        f"The server has no collation {unpadded}; names are compared by {_PADDED}, for which 'a' and 'a ' are equal.",
        "Let no two names of queues, locks or counters differ only in spaces at their end.",
    )


def server_problems(connection: BaseDatabaseWrapper, job_table: str) -> Iterator[Problem]:
    """Engine of the job table, isolation, statement-based replication."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SHOW VARIABLES WHERE Variable_name IN "
            "('transaction_isolation', 'tx_isolation', 'binlog_format', 'log_bin')"
        )
        found = dict(cursor.fetchall())
        cursor.execute(
            "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
            [job_table],
        )
        row = cursor.fetchone()
    if row and str(row[0]).lower() != "innodb":
        yield Problem(
            "E013",
            f"The job table uses engine {row[0]}: no row locks, no transactions.",
            f"ALTER TABLE {job_table} ENGINE=InnoDB",
        )
    isolation = found.get("transaction_isolation") or found.get("tx_isolation")
    if isolation != "READ-COMMITTED":
        yield Problem(
            "W022",
            f"Sessions run at {isolation}: gap locks of your own statements can block enqueueing.",
            'Set OPTIONS["isolation_level"] = "read committed"; claims use it in any case.',
        )
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        yield Problem(
            "W023",
            "The server replicates statements (binlog_format=STATEMENT): a replica may skip other rows.",
            "SET GLOBAL binlog_format = 'ROW'.",
        )


def error_number(error: BaseException) -> object:
    """The error number that MySQL's drivers put first; None for an error without arguments."""
    return error.args[0] if error.args else None


def in_transaction(connection: BaseDatabaseWrapper, *, begun: bool = False) -> bool:
    """PyMySQL keeps the server's status. Else the server is asked: one round trip.

    With autocommit off the next statement would begin one: True unless `begun`.
    """
    session: Any = connection.connection
    status = getattr(session, "server_status", None)
    if isinstance(status, int):
        return bool(status & _IN_TRANSACTION or not (begun or status & _AUTOCOMMIT))
    by_driver = getattr(session, "get_autocommit", None)
    if not begun and by_driver is not None and not by_driver():
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


def reset_session(connection: BaseDatabaseWrapper) -> bool:
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


def write_refusal(connection: BaseDatabaseWrapper) -> str:
    """The variable for which the server refuses this account's writes; "" if it does not."""
    with connection.cursor() as cursor:
        # Not as @@names, of which each server knows others.
        cursor.execute("SHOW VARIABLES WHERE Variable_name IN (%s, %s, %s, %s, %s)", _REFUSALS)
        values = {str(name): str(value) for name, value in cursor.fetchall()}
        found = [name for name in _REFUSALS if values.get(name, "OFF") not in ("OFF", "0")]
        if found == ["read_only"]:
            cursor.execute(_EXEMPT)
            found = [] if cursor.fetchone()[0] else found
    return found[0] if found else ""
