"""The row of a mutex key on MySQL and MariaDB, as one transaction takes it."""

from __future__ import annotations

import time
from typing import Any

from django.db import IntegrityError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.lock_dialect import MutexTable, stale_snapshot
from jobqueue.db.mysql.second_session import cursor_beside
from jobqueue.db.mysql.server import SESSION_LOST, error_number
from jobqueue.db.parameters import Parameter, placeholder

#: lock wait timeout (MariaDB's NOWAIT too), NOWAIT
NOT_YET = {1205, 3572}
#: MariaDB with innodb_snapshot_isolation: the row is newer than the snapshot
CHANGED = 1020
_KNOWN_MAX = 10_000
#: rows that were committed when this process looked, and until when none of them can have been swept
_known: dict[tuple[str, str, str], float] = {}


class MutexOfMySQL:
    """A key's row, which is committed by a session of its own before the caller's transaction locks it.

    If the caller inserted it, its rollback would turn the locks of the waiting sessions into gap locks, and these would
    deadlock when each of them inserts the row.
    """

    def __init__(
        self, connection: BaseDatabaseWrapper, rows: MutexTable, key: str, name: Parameter, *, nowait: bool
    ) -> None:
        self.connection, self.rows, self.key = connection, rows, key
        #: the key as a statement takes it
        self.name, self.place = name, placeholder(name)
        self.table = connection.ops.quote_name(rows.table)
        self.suffix = " NOWAIT" if nowait else ""

    def take(self) -> None:
        """Lock it and add one. Raises StaleSnapshot if this transaction's reads are older than the last holder."""
        with self.connection.cursor() as cursor:
            found = self._lock(cursor)
            if found is None:
                # Deleted since this process has seen it.
                self.make(again=True)
                found = self._lock(cursor)
            self._refuse_stale(cursor, found)
            rows = self.rows
            changes = f"{rows.takes} = {rows.takes} + 1, {rows.taken_at} = UTC_TIMESTAMP(6)"
            cursor.execute(
                f"INSERT INTO {self.table} ({rows.key}, {rows.takes}, {rows.taken_at}) "
                f"VALUES ({self.place}, 1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE {changes}"
                if found is None
                else f"UPDATE {self.table} FORCE INDEX (PRIMARY) SET {changes} WHERE {rows.key} = {self.place}",
                [self.name],
            )

    def _lock(self, cursor: Any) -> tuple[int, str, str | None] | None:
        """(takes, row as it is, row as this transaction's snapshot shows it); None where there is no row.

        The level of a transaction cannot be asked for, so all of them are compared. No plain read may come before the
        lock, it would open the snapshot before the last holder's commit: the inner one depends on the locked row.
        """
        key, takes, made = self.rows.key, self.rows.takes, self.rows.created_at
        cursor.execute(
            f"SELECT t.{takes}, CONCAT(t.{takes}, ' ', t.{made}), "
            f"(SELECT CONCAT(s.{takes}, ' ', s.{made}) FROM {self.table} AS s WHERE s.{key} = t.{key}) "
            f"FROM {self.table} AS t FORCE INDEX (PRIMARY) WHERE t.{key} = {self.place} FOR UPDATE{self.suffix}",
            [self.name],
        )
        found: tuple[int, str, str | None] | None = cursor.fetchone()
        return found

    def _refuse_stale(self, cursor: Any, found: tuple[int, str, str | None] | None) -> None:
        if found is None:
            cursor.execute(f"SELECT 1 FROM {self.table} WHERE {self.rows.key} = {self.place}", [self.name])
            takes, unseen, is_same = 0, cursor.fetchone() is None, False
        else:
            takes, unseen, is_same = found[0], found[2] is None, found[1] == found[2]
        if is_same:
            return
        # A row that was never taken, of a key that is not in the snapshot: new, unless one was deleted in between.
        if takes or not unseen or self._swept(cursor):
            raise stale_snapshot(self.key)

    def _swept(self, cursor: Any) -> bool:
        """Whether rows of mutexes have been deleted since this transaction's snapshot."""
        cursor.execute(f"{self.rows.deletions_sql} LOCK IN SHARE MODE")
        now = cursor.fetchone()
        cursor.execute(self.rows.deletions_sql)
        return bool(now != cursor.fetchone())

    def make(self, *, again: bool = False) -> None:
        """Commit the row by a session of its own, if this process has not seen it yet."""
        known = (self.connection.alias, str(self.connection.settings_dict["NAME"]), self.key)
        if not again and _known.get(known, 0.0) > time.monotonic():
            return
        try:
            made = self._make_beside()
        except OperationalError as error:
            if error_number(error) not in SESSION_LOST:
                raise
            # It was perhaps ended while it was idle. The next use opens a new one.
            made = self._make_beside()
        if made:
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[known] = time.monotonic() + self.rows.idle_seconds / 2

    def _make_beside(self) -> bool:
        with cursor_beside(self.connection.alias) as cursor:
            return cursor is not None and self._make(cursor)

    def _make(self, cursor: Any) -> bool:
        """Whether there is a row that the sweeper will leave alone for a while."""
        rows = self.rows
        young = f"TIMESTAMPADD(SECOND, -{rows.idle_seconds // 2}, UTC_TIMESTAMP(6))"
        used = f"COALESCE({rows.taken_at}, {rows.created_at})"
        cursor.execute(f"SELECT {used} > {young} FROM {self.table} WHERE {rows.key} = {self.place}", [self.name])
        found = cursor.fetchone()
        if found is not None:
            return bool(found[0])
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        try:
            cursor.execute(f"INSERT INTO {self.table} ({rows.key}) VALUES ({self.place})", [self.name])
        except IntegrityError:
            pass  # another session has just inserted it
        except OperationalError as error:
            if error_number(error) not in NOT_YET:
                raise
            return False
        return True
