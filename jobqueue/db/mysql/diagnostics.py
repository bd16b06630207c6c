"""Held locks, lock waits, deadlocks and slow statements on MySQL, from performance_schema and InnoDB's status."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.diagnostics import (
    Deadlock,
    Diagnostics,
    HeldLock,
    HeldLocks,
    LockKind,
    LockWait,
    OldTransaction,
    Party,
    RowHolder,
    SlowStatement,
    lock_wait,
    without_values,
)
from jobqueue.db.diagnostics import marked as _
from jobqueue.db.mysql.errors import error_number
from jobqueue.db.statements import marks
from jobqueue.exceptions import NotSupported

#: of strings
QUOTES = "'\""

_DENIED = {1044, 1142, 1143, 1227, 1370}
# THREAD_ID of a record lock is the thread that has made the entry, which need not hold the lock: a session that waits
# for an inserted row makes it for the one that has inserted the row, and purge moves locks of others. The lock on the
# table is always made by its holder, so it tells whose transaction it is.
_BLOCKING_THREAD = """COALESCE((
  SELECT o.thread_id FROM performance_schema.data_locks o
  WHERE o.engine_transaction_id = w.blocking_engine_transaction_id AND o.engine = w.engine AND o.lock_type = 'TABLE'
  LIMIT 1
), w.blocking_thread_id)"""
# The waits come first in the join: without any, no lock is read. Two seconds at most, because an admin page waits.
_WAITS = f"""
SELECT /*+ MAX_EXECUTION_TIME(2000) */ w.requesting_engine_lock_id, rt.processlist_id, bt.processlist_id,
  COALESCE(rs.timer_wait, 0) / 1e12, r.object_schema = DATABASE(), r.object_schema, r.object_name, r.index_name,
  r.lock_mode, r.lock_data, COALESCE(rs.digest_text, rs.sql_text), COALESCE(bs.digest_text, bs.sql_text),
  bt.processlist_command = 'Sleep', bx.timer_wait / 1e12
FROM performance_schema.data_lock_waits w
STRAIGHT_JOIN performance_schema.data_locks r
  ON r.engine_lock_id = w.requesting_engine_lock_id AND r.engine = w.engine
STRAIGHT_JOIN performance_schema.threads rt ON rt.thread_id = w.requesting_thread_id
STRAIGHT_JOIN performance_schema.threads bt ON bt.thread_id = {_BLOCKING_THREAD}
LEFT JOIN performance_schema.events_statements_current rs
  ON rs.thread_id = w.requesting_thread_id AND rs.nesting_event_level = 0
LEFT JOIN performance_schema.events_statements_current bs
  ON bs.thread_id = bt.thread_id AND bs.nesting_event_level = 0
LEFT JOIN performance_schema.events_transactions_current bx
  ON bx.thread_id = bt.thread_id AND bx.state = 'ACTIVE'
ORDER BY 4 DESC LIMIT %s
"""
# Modes that exclude other sessions from a table or a name of GET_LOCK; the other modes are shared.
_ALONE = "'EXCLUSIVE', 'SHARED_NO_READ_WRITE', 'SHARED_NO_WRITE', 'SHARED_READ_ONLY', 'SHARED'"
# Modes that exclude readers from a table.
_KEEP_OUT = "'EXCLUSIVE', 'SHARED_NO_READ_WRITE'"
_METADATA_WAITS = f"""
SELECT /*+ MAX_EXECUTION_TIME(2000) */ p.object_type, p.object_schema = DATABASE(), p.object_schema, p.object_name,
  p.lock_type, rt.processlist_id, bt.processlist_id, COALESCE(rs.timer_wait, 0) / 1e12,
  COALESCE(rs.digest_text, rs.sql_text), COALESCE(bs.digest_text, bs.sql_text), bt.processlist_command = 'Sleep',
  bx.timer_wait / 1e12
FROM performance_schema.metadata_locks p
STRAIGHT_JOIN performance_schema.metadata_locks g
  ON g.object_type = p.object_type AND g.object_schema <=> p.object_schema AND g.object_name <=> p.object_name
  AND g.owner_thread_id <> p.owner_thread_id
  AND (g.lock_type IN ({_ALONE}) OR (p.lock_type IN ({_ALONE}) AND g.lock_status = 'GRANTED'))
STRAIGHT_JOIN performance_schema.threads rt ON rt.thread_id = p.owner_thread_id
STRAIGHT_JOIN performance_schema.threads bt ON bt.thread_id = g.owner_thread_id
LEFT JOIN performance_schema.events_statements_current rs
  ON rs.thread_id = p.owner_thread_id AND rs.nesting_event_level = 0
LEFT JOIN performance_schema.events_statements_current bs
  ON bs.thread_id = g.owner_thread_id AND bs.nesting_event_level = 0
LEFT JOIN performance_schema.events_transactions_current bx
  ON bx.thread_id = g.owner_thread_id AND bx.state = 'ACTIVE'
WHERE p.lock_status = 'PENDING' AND bt.processlist_id IS NOT NULL
ORDER BY 8 DESC LIMIT %s
"""
_HELD = """
SELECT DISTINCT IF(l.object_schema = DATABASE(), l.object_name, CONCAT(l.object_schema, '.', l.object_name)),
  l.index_name, l.lock_type, l.lock_mode, l.lock_data
FROM performance_schema.data_locks o
STRAIGHT_JOIN performance_schema.data_locks l
  ON l.engine_transaction_id = o.engine_transaction_id AND l.engine = o.engine
WHERE o.engine = 'INNODB' AND o.thread_id = PS_CURRENT_THREAD_ID() AND o.lock_type = 'TABLE'
"""
_LOCKS_OF = """
SELECT /*+ MAX_EXECUTION_TIME(2000) */ 1 FROM performance_schema.threads t
STRAIGHT_JOIN performance_schema.data_locks o ON o.thread_id = t.thread_id AND o.lock_type = 'TABLE'
STRAIGHT_JOIN performance_schema.data_locks l
  ON l.engine_transaction_id = o.engine_transaction_id AND l.engine = o.engine
WHERE t.processlist_id = %s AND l.object_schema = DATABASE() AND l.object_name = %s AND l.lock_type = 'RECORD'
LIMIT 1
"""
# Old transactions come first in the join, and there are few of them: the locks of the others are not read.
_HOLDERS = """
SELECT /*+ MAX_EXECUTION_TIME(2000) */ DISTINCT l.object_name, SUBSTRING_INDEX(l.lock_data, ',', 1) AS first_column,
  t.processlist_id, x.timer_wait / 1e12 AS age, COALESCE(s.digest_text, s.sql_text), t.processlist_command = 'Sleep'
FROM performance_schema.events_transactions_current x
STRAIGHT_JOIN performance_schema.threads t ON t.thread_id = x.thread_id
STRAIGHT_JOIN performance_schema.data_locks o ON o.thread_id = x.thread_id AND o.lock_type = 'TABLE'
STRAIGHT_JOIN performance_schema.data_locks l
  ON l.engine_transaction_id = o.engine_transaction_id AND l.engine = o.engine
LEFT JOIN performance_schema.events_statements_current s
  ON s.thread_id = x.thread_id AND s.nesting_event_level = 0
WHERE x.state = 'ACTIVE' AND x.timer_wait >= %s AND t.processlist_id <> CONNECTION_ID()
  AND l.object_schema = DATABASE() AND l.index_name = 'PRIMARY' AND l.lock_type = 'RECORD'
  AND l.lock_status = 'GRANTED' AND (l.lock_mode NOT LIKE '%%GAP%%' OR l.lock_mode LIKE '%%REC_NOT_GAP%%')
  AND ({wanted})
ORDER BY age DESC LIMIT 20
"""
_TABLE_HOLDERS = f"""
SELECT /*+ MAX_EXECUTION_TIME(2000) */ DISTINCT g.object_name, t.processlist_id, x.timer_wait / 1e12,
  COALESCE(s.digest_text, s.sql_text), t.processlist_command = 'Sleep'
FROM performance_schema.metadata_locks g
STRAIGHT_JOIN performance_schema.threads t ON t.thread_id = g.owner_thread_id
LEFT JOIN performance_schema.events_statements_current s
  ON s.thread_id = g.owner_thread_id AND s.nesting_event_level = 0
LEFT JOIN performance_schema.events_transactions_current x
  ON x.thread_id = g.owner_thread_id AND x.state = 'ACTIVE'
WHERE g.object_type = 'TABLE' AND g.object_schema = DATABASE() AND g.object_name IN ({{tables}})
  AND g.lock_status = 'GRANTED' AND g.lock_type IN ({_KEEP_OUT}) AND t.processlist_id <> CONNECTION_ID()
LIMIT 20
"""
_ISOLATION = (
    "SELECT COALESCE((SELECT isolation_level FROM performance_schema.events_transactions_current "
    "WHERE thread_id = PS_CURRENT_THREAD_ID() AND state = 'ACTIVE' LIMIT 1), @@transaction_isolation)"
)
_SLOW = (
    "SELECT digest_text, count_star, sum_lock_time / 1e12, sum_timer_wait / 1e12 "
    "FROM performance_schema.events_statements_summary_by_digest "
    "WHERE schema_name = DATABASE() AND sum_lock_time > 1e10 AND digest_text NOT LIKE 'EXPLAIN%%' "
    "ORDER BY sum_lock_time DESC LIMIT %s"
)
# Instants of INNODB_TRX have the zone of the server's host.
_OLD = """
SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()) AS age,
  trx_query IS NULL, trx_rows_locked > 0 OR trx_rows_modified > 0
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id NOT IN (0, CONNECTION_ID())
HAVING age >= %s ORDER BY age DESC LIMIT %s
"""
NO_SCHEMA_RIGHT = _(
    "This account may not read performance_schema, so lock waits and slow locking statements are not shown. "
    "GRANT SELECT ON performance_schema.* TO it."
)
NO_PROCESS_RIGHT = _(
    "This account may not ask InnoDB, so deadlocks (on MariaDB also lock waits) are not shown. "
    "GRANT PROCESS ON *.* TO it."
)
SCHEMA_OFF = _(
    "performance_schema is off on this server, so it does not count the lock times of statements. "
    "Start it with performance_schema=ON to see them."
)
# Of the text of SHOW ENGINE INNODB STATUS, on MySQL and MariaDB.
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


class MySQLDiagnostics(Diagnostics):
    """MySQL 8.0.17 and later."""

    available = True
    held_unseen = "Not shown: rows this transaction has inserted. They are locked, but listed only once somebody waits."

    def held(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """This session's locks. Raises NotSupported with performance_schema off, or without SELECT on data_locks."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@performance_schema")
            if not cursor.fetchone()[0]:
                raise NotSupported(
                    "performance_schema is off on this server, and MySQL shows locks nowhere else. Nothing was "
                    "changed; start the server with performance_schema=ON (its default), or look on another server."
                )
            try:
                cursor.execute(_ISOLATION)
                isolation = str(cursor.fetchone()[0]).lower().replace("-", " ")
                cursor.execute(_HELD)
            except Error as error:
                if error_number(error) in _DENIED:
                    raise NotSupported(
                        f"this account may not read the locks in performance_schema ({error}). Nothing was changed; "
                        "GRANT SELECT ON performance_schema.* TO it."
                    ) from error
                raise
            return HeldLocks(frozenset(_lock(*row) for row in cursor.fetchall()), isolation)

    def waits(self, connection: BaseDatabaseWrapper, limit: int = 20) -> list[LockWait]:
        need_schema(connection)
        rows = ask(connection, _WAITS, [limit], NO_SCHEMA_RIGHT)
        tables = ask(connection, _METADATA_WAITS, [limit], NO_SCHEMA_RIGHT)
        found = [_wait(*row) for row in rows] + [_metadata_wait(*row) for row in tables]
        return sorted(found, key=lambda wait: -wait.seconds)[:limit]

    def may_lock(self, connection: BaseDatabaseWrapper, session: int, table: str) -> bool:
        return bool(ask(connection, _LOCKS_OF, [session, table], NO_SCHEMA_RIGHT))

    def row_holders(
        self, connection: BaseDatabaseWrapper, rows: Mapping[str, tuple[str, Sequence[int | str]]], seconds: float
    ) -> list[RowHolder]:
        """From data_locks, which does not list rows that a transaction has inserted while nobody waits for them."""
        wanted, params = list[str](), list[Any]([seconds * 1e12])
        for table, (_column, values) in rows.items():
            wanted.append(f"l.object_name = %s AND SUBSTRING_INDEX(l.lock_data, ',', 1) IN ({marks(values)})")
            # As the server writes them: strings have quotes.
            params += [table, *(f"'{value}'" if isinstance(value, str) else str(value) for value in values)]
        found = ask(connection, _HOLDERS.format(wanted=" OR ".join(wanted)), params, NO_SCHEMA_RIGHT)
        return [_holder(*row) for row in found]

    def table_holders(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[RowHolder]:
        """From metadata_locks."""
        found = ask(connection, _TABLE_HOLDERS.format(tables=marks(tables)), [*tables], NO_SCHEMA_RIGHT)
        return [_table_holder(*row) for row in found]

    def deadlocks(self, connection: BaseDatabaseWrapper) -> int:
        """InnoDB's counter lock_deadlocks, from the start of the server."""
        sql = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        rows = ask(connection, sql, [], NO_PROCESS_RIGHT)
        return int(rows[0][0]) if rows else 0

    def latest_deadlock(self, connection: BaseDatabaseWrapper) -> Deadlock | None:
        """The section LATEST DETECTED DEADLOCK of InnoDB's status."""
        rows = ask(connection, "SHOW ENGINE INNODB STATUS", [], NO_PROCESS_RIGHT)
        # Compatible servers return no row here, or an empty text.
        status = rows[0][2] if rows and len(rows[0]) > 2 else None
        with connection.cursor() as cursor:
            return read_deadlock(cursor, str(status or ""))

    def slow_statements(self, connection: BaseDatabaseWrapper, limit: int = 10) -> list[SlowStatement]:
        """By SUM_LOCK_TIME, which has waits for rows since MySQL 8.0.28 and waits for tables before."""
        need_schema(connection)
        rows = ask(connection, _SLOW, [limit], NO_SCHEMA_RIGHT)
        return [
            SlowStatement(without_values(text, QUOTES), int(runs), float(locked), float(total))
            for text, runs, locked, total in rows
        ]

    def old_transactions(
        self, connection: BaseDatabaseWrapper, table: str, seconds: float, limit: int
    ) -> list[OldTransaction]:
        """From InnoDB's list of transactions, which needs PROCESS."""
        rows = ask(connection, _OLD, [seconds, limit], NO_PROCESS_RIGHT)
        return [
            OldTransaction(int(session), float(age), bool(idles), bool(locks)) for session, age, idles, locks in rows
        ]


def _lock(table: str, index: str | None, lock_type: str, mode: str, data: str | None) -> HeldLock:
    if lock_type == "TABLE" or index is None:
        return HeldLock(table, "", LockKind.TABLE, mode)
    return innodb_lock(table, index, frozenset(mode.split(",")), data)


def _wait(identity: str, waiting: int, blocking: int, seconds: Any, *rest: Any) -> LockWait:
    is_here, schema, table, index, mode, key, *facts = rest
    locked = record_of(table if is_here else f"{schema}.{table}", index, key)
    name, sessions = f"{identity} {waiting} {blocking}", (waiting, blocking)
    return lock_wait(name, sessions, locked, mode, seconds, *facts, quotes=QUOTES)


def _holder(table: str, key: str, session: int, seconds: Any, statement: str | None, idles: Any) -> RowHolder:
    text = without_values(statement, QUOTES)
    return RowHolder(table, key.strip("'"), int(session), float(seconds), text, bool(idles))


def _table_holder(table: str, session: int, seconds: Any, statement: str | None, idles: Any) -> RowHolder:
    text = without_values(statement, QUOTES)
    return RowHolder(table, "", int(session), None if seconds is None else float(seconds), text, bool(idles))


def _metadata_wait(
    kind: str,
    is_here: int | None,
    schema: str | None,
    name: str | None,
    mode: str,
    waiting: int,
    blocking: int,
    *rest: Any,
) -> LockWait:
    table = (name if is_here else f"{schema}.{name}") if kind == "TABLE" else f"{kind.lower()} {name or ''}".strip()
    identity = f"metadata {table} {waiting} {blocking}"
    return lock_wait(identity, (waiting, blocking), table or "", mode, *rest, quotes=QUOTES)


def need_schema(connection: BaseDatabaseWrapper) -> None:
    """Raise NotSupported if performance_schema is off."""
    if not ask(connection, "SELECT @@performance_schema", [], SCHEMA_OFF)[0][0]:
        raise NotSupported(SCHEMA_OFF)


def ask(connection: BaseDatabaseWrapper, sql: str, params: list[Any], refusal: str) -> list[Any]:
    """The rows; NotSupported with `refusal` if the account may not see them."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, params or None)
            return list(cursor.fetchall())
    except Error as error:
        if error_number(error) not in _DENIED:
            raise
        raise NotSupported(refusal) from error


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
        told.statement = without_values(body[found.end() :], QUOTES)
