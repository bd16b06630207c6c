"""The text of SHOW ENGINE INNODB STATUS, on MySQL and MariaDB: the locks of a transaction, the latest deadlock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jobqueue.db.lock_facts import MYSQL_QUOTES, Deadlock, HeldLock, LockKind, Party, without_values
from jobqueue.db.lock_facts import marked as _

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
_CLUSTERED = ("PRIMARY", "GEN_CLUST_INDEX")
_SECTION = re.compile(r"^LATEST DETECTED DEADLOCK\n-+\n(.*?)(?=^-{3,}\n[A-Z ]+\n-{3,}$|\Z)", re.MULTILINE | re.DOTALL)
_PART = re.compile(r"^\*\*\* ", re.MULTILINE)
_SESSION = re.compile(r"^(?:MySQL|MariaDB) thread id (\d+),.*$", re.MULTILINE)
_TRANSACTION = re.compile(r"^TRANSACTION (\S+?),", re.MULTILINE)
_OWNER = re.compile(r" trx id (\S+) lock")
CUT = _("The server's text was cut short, so it does not tell who was rolled back.")


def innodb_lock(table: str, index: str, words: frozenset[str], key: str | None) -> HeldLock:
    """A record lock of InnoDB by the words of its mode (X, S, GAP, REC_NOT_GAP, INSERT_INTENTION)."""
    if "INSERT_INTENTION" in words:
        kind = LockKind.INSERT_INTENTION
    elif key is not None and key.startswith("supremum"):
        kind, key = LockKind.SUPREMUM, None
    elif "GAP" in words:
        kind = LockKind.GAP
    else:
        kind = LockKind.RECORD if "REC_NOT_GAP" in words else LockKind.NEXT_KEY
    has_record = kind in (LockKind.RECORD, LockKind.NEXT_KEY)
    return HeldLock(table, index, kind, "S" if "S" in words else "X", key, has_record and index in _CLUSTERED)


def record_of(table: str, index: str | None, key: str | None) -> str:
    """What is locked, for people: a table, an index of it, a record of that."""
    where = f"{table}, index {index}" if index else table
    return f"{where}, record {key}" if key else where


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
            found.append(f"{record_of(lock.table, lock.index, lock.key)}: {lock.kind} lock, {lock.mode}")
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


class _Transaction:
    """What the text says about one transaction."""

    def __init__(self) -> None:
        self.transaction = self.statement = ""
        self.session = 0
        self.holds: list[str] = []
        self.waits_for: list[str] = []


def read_deadlock(cursor: Any, status: str) -> Deadlock | None:
    """The report in InnoDB's status; None if there was no deadlock since the server started.

    Both MySQL's form (HOLDS THE LOCK(S)) and MariaDB's (CONFLICTING WITH, which names the other's lock) are read. The
    columns of keys are looked up with `cursor`, because the text has them as bytes.
    """
    section = _SECTION.search(status)
    if section is None:
        return None
    reader = MonitorReader(cursor)
    found_by_number: dict[int, _Transaction] = {}
    conflicts: list[tuple[str, str]] = []
    current, victim = 1, 0
    for part in _PART.split(section[1])[1:]:
        head, _, body = part.partition("\n")
        if found := re.match(r"\((\d+)\) ", head):
            current = int(found[1])
        one = found_by_number.setdefault(current, _Transaction())
        if "TRANSACTION:" in head:
            _read_head(one, body)
        elif "HOLDS THE LOCK" in head:
            one.holds += reader.words(body)
        elif "WAITING FOR" in head:
            one.waits_for += reader.words(body)
        elif "CONFLICTING WITH" in head:
            owners = _OWNER.findall(body)
            conflicts += [(owners[0], words) for words in reader.words(body)] if owners else []
        elif rolled := re.match(r"WE ROLL BACK TRANSACTION \((\d+)\)", head):
            victim = int(rolled[1])
    for owner, words in conflicts:
        for one in found_by_number.values():
            if one.transaction == owner and words not in one.holds:
                one.holds.append(words)
    instant = section[1].partition("\n")[0]
    names = " ".join(one.transaction for one in found_by_number.values())
    parties = tuple(
        Party(one.session, one.statement, tuple(one.holds), tuple(one.waits_for), number == victim)
        for number, one in sorted(found_by_number.items())
    )
    return Deadlock(f"{instant} {names}", parties, "" if victim else CUT)


def _read_head(told: _Transaction, body: str) -> None:
    if found := _TRANSACTION.search(body):
        told.transaction = found[1]
    if found := _SESSION.search(body):
        told.session = int(found[1])
        # What follows the session's line is its statement, over as many lines as it has.
        told.statement = without_values(body[found.end() :], MYSQL_QUOTES)
