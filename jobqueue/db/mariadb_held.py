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

from jobqueue.db.held import HeldLock, HeldLocks, LockKind, innodb_lock
from jobqueue.exceptions import NotSupported

_NAME = r"`((?:[^`]|``)*)`(?: /\*.*?\*/)?"
_TABLE = re.compile(rf"^TABLE LOCK table `([^`]*)`\.{_NAME} trx id \S+ lock mode (\S+)")
_INDEX = re.compile(rf"^RECORD LOCKS .*? index (\S+) of table `([^`]*)`\.{_NAME} trx id \S+ lock[_ ]mode (\S)(.*)$")
_FIELD = re.compile(r"^ (\d+): (?:len (\d+); hex ([0-9a-f]*);|SQL NULL)")
_WORDS = {"gap before rec": "GAP", "rec but not gap": "REC_NOT_GAP", "insert intention": "INSERT_INTENTION"}
_COLUMNS = (
    "SELECT s.index_name, c.data_type, c.column_type FROM information_schema.statistics s "
    "JOIN information_schema.columns c USING (table_schema, table_name, column_name) "
    "WHERE s.table_schema = %s AND s.table_name = %s AND s.index_name IN (%s, 'PRIMARY') "
    "ORDER BY s.index_name = 'PRIMARY', s.seq_in_index"
)
_ISOLATION = (
    "SELECT trx_isolation_level FROM information_schema.innodb_trx "
    "WHERE trx_mysql_thread_id = CONNECTION_ID() AND trx_id = %s"
)
_TRIES = 5
_INTS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}


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
        if cut or not _counted(part) or any(_INDEX.match(line) for line in part):
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


class MonitorReader:
    """Turns the monitor's text into locks; keys come as bytes, so the columns' types are looked up."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor
        cursor.execute("SELECT DATABASE()")
        self.database = str(cursor.fetchone()[0])
        self._types: dict[tuple[str, str, str], list[tuple[str, str]]] = {}

    def locks(self, lines: list[str]) -> Iterator[HeldLock]:
        """One for each record that is listed."""
        head: tuple[str, str, str, frozenset[str]] | None = None
        fields: list[str | None] | None = None
        for line in [*lines, ""]:
            if match := _TABLE.match(line):
                yield HeldLock(self._table(match[1], match[2]), "", LockKind.TABLE, match[3])
            elif match := _INDEX.match(line):
                words = {word for said, word in _WORDS.items() if said in match[5]}
                head = match[2], match[3].replace("``", "`"), match[1], frozenset({match[4], *words})
            elif line.startswith("Record lock"):
                fields = []
            elif fields is not None and (field := _FIELD.match(line)):
                fields.append(field[3])
            elif fields is not None and not line.strip() and head is not None:
                schema, table, index, mode = head
                yield innodb_lock(self._table(schema, table), index, mode, self._key(schema, table, index, fields))
                fields = None

    def words(self, text: str) -> list[str]:
        """The locks in `text`, each as: table, index, record; kind and mode."""
        found = []
        for lock in self.locks(text.splitlines()):
            where = f"{lock.table}, index {lock.index}" if lock.index else lock.table
            record = f"{where}, record {lock.key}" if lock.key is not None else where
            found.append(f"{record}: {lock.kind} lock, {lock.mode}")
        return found

    def _table(self, schema: str, table: str) -> str:
        return table if schema == self.database else f"{schema}.{table}"

    def _key(self, schema: str, table: str, index: str, fields: list[str | None]) -> str | None:
        if fields and fields[0] == b"supremum".hex():
            return "supremum"
        place = (schema, table, index)
        if place not in self._types:
            self.cursor.execute(_COLUMNS, place)
            found = self.cursor.fetchall()
            self._types[place] = [(kind, full) for name, kind, full in found if index != "PRIMARY" or name == index]
        types = self._types[place]
        shown = [readable(raw, *kind) for raw, kind in zip(fields, types, strict=False)]
        # Without fields: the page is not in memory.
        return ", ".join(shown) or next(iter(fields), None)


def readable(raw: str | None, data_type: str, column_type: str) -> str:
    """A column of an index entry, from InnoDB's own format in hex: numbers and text; other types stay hex."""
    if raw is None:
        return "NULL"
    data = bytes.fromhex(raw)
    if data_type in _INTS:
        number = int.from_bytes(data, "big")
        # Signed numbers are stored with the sign turned round, so that bytes sort like numbers.
        return str(number if "unsigned" in column_type else number - (1 << (8 * len(data) - 1)))
    if data_type in _TEXTS:
        return repr(data.decode(errors="replace"))
    return f"0x{raw}"
