"""The locks of a session on MariaDB, from SHOW ENGINE INNODB STATUS.

MariaDB has no data_locks, and information_schema.INNODB_LOCKS lists only locks that somebody waits for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.lock_facts import HeldLocks
from jobqueue.db.mysql.innodb_text import RECORD_LOCKS, MonitorReader
from jobqueue.exceptions import NotSupported

_ISOLATION = (
    "SELECT trx_isolation_level FROM information_schema.innodb_trx "
    "WHERE trx_mysql_thread_id = CONNECTION_ID() AND trx_id = %s"
)
_TRIES = 5


def mariadb_held(connection: BaseDatabaseWrapper) -> HeldLocks:
    """This session's locks. Raises NotSupported without PROCESS, and without SUPER if the locks' output is off."""
    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT CONNECTION_ID(), @@tx_isolation")
            session, level = cursor.fetchone()
            part, cut = _status(cursor, int(session))
            level = (_isolation(cursor, part[0].partition(",")[0]) if part else None) or level
        except Error as error:
            raise NotSupported(
                f"this account may not ask InnoDB for its locks ({error}). Nothing was changed; GRANT PROCESS to it, "
                "and either SUPER or, once and for all, SET GLOBAL innodb_status_output_locks=ON."
            ) from error
        locks = list(MonitorReader(cursor).locks(part))
    complete = not cut and sum(bool(lock.index) for lock in locks) >= _counted(part)
    return HeldLocks(frozenset(locks), str(level).lower().replace("-", " "), complete)


def _status(cursor: Any, session: int) -> tuple[list[str], bool]:
    """The lines of the session's transaction; asked again if another session has just switched off their lists."""
    part: list[str] = []
    cut = False
    for _ in range(_TRIES):
        with _output_locks(cursor):
            cursor.execute("SHOW ENGINE INNODB STATUS")
            row = cursor.fetchone()
            part, cut = own_part(str(row[2] or "") if row else "", session)
        if cut or not _counted(part) or any(RECORD_LOCKS.match(line) for line in part):
            break
    return part, cut


def own_part(text: str, session: int) -> tuple[list[str], bool]:
    """The lines of the session's transaction, and whether they were cut short. Empty: it holds no lock."""
    for part in re.split(r"^---TRANSACTION ", text, flags=re.MULTILINE)[1:]:
        if re.search(rf"^MariaDB thread id {session},", part, re.MULTILINE):
            lines = re.split(r"^(?:--------|\*\*\*)", part, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
            return lines, "SUPPRESSING FURTHER PRINTS" in part or "truncated" in part
    return [], "truncated" in text


def _counted(lines: list[str]) -> int:
    """How many record locks the transaction has by its own count."""
    found = re.search(r"(\d+) row lock\(s\)", "\n".join(lines[:8]))
    return int(found[1]) if found else 0


def _isolation(cursor: Any, transaction_id: str) -> str | None:
    """Of the transaction. Its view is only made anew when nobody has looked for 100 ms."""
    for seconds in (0, 0.11):
        cursor.execute("SELECT SLEEP(%s)", [seconds])
        cursor.execute(_ISOLATION, [transaction_id])
        row = cursor.fetchone()
        if row is not None:
            return str(row[0])
    return None


@contextmanager
def _output_locks(cursor: Any) -> Iterator[None]:
    """The status with its locks: a switch of the whole server, put back at once."""
    cursor.execute("SELECT @@GLOBAL.innodb_status_output_locks")
    if cursor.fetchone()[0]:
        yield
        return
    cursor.execute("SET GLOBAL innodb_status_output_locks = ON")
    try:
        yield
    finally:
        cursor.execute("SET GLOBAL innodb_status_output_locks = OFF")
