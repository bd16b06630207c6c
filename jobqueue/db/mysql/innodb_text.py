"""The locks in the text of InnoDB's monitor, on MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jobqueue.db.lock_facts import HeldLock, LockKind, innodb_lock

_NAME = r"`((?:[^`]|``)*)`(?: /\*.*?\*/)?"
_TABLE = re.compile(rf"^TABLE LOCK table `([^`]*)`\.{_NAME} trx id \S+ lock mode (\S+)")
RECORD_LOCKS = re.compile(
    rf"^RECORD LOCKS .*? index (\S+) of table `([^`]*)`\.{_NAME} trx id \S+ lock[_ ]mode (\S)(.*)$"
)
_FIELD = re.compile(r"^ (\d+): (?:len (\d+); hex ([0-9a-f]*);|SQL NULL)")
_WORDS = {"gap before rec": "GAP", "rec but not gap": "REC_NOT_GAP", "insert intention": "INSERT_INTENTION"}
_COLUMNS = (
    "SELECT s.index_name, c.data_type, c.column_type FROM information_schema.statistics s "
    "JOIN information_schema.columns c USING (table_schema, table_name, column_name) "
    "WHERE s.table_schema = %s AND s.table_name = %s AND s.index_name IN (%s, 'PRIMARY') "
    "ORDER BY s.index_name = 'PRIMARY', s.seq_in_index"
)
_INTS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}


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
            elif match := RECORD_LOCKS.match(line):
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
