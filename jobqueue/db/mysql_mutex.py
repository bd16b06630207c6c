"""The row of a mutex key on MySQL and MariaDB, as one transaction takes it."""

from __future__ import annotations

import time
from typing import Any

from django.db import IntegrityError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import first_arg, stale_snapshot
from jobqueue.db.beside import cursor_beside
from jobqueue.db.binary import place
from jobqueue.db.mutex_floor import MUTEX_FLOOR, MUTEX_IDLE_SECONDS

#: lock wait timeout (MariaDB's NOWAIT too), NOWAIT
NOT_YET = {1205, 3572}
#: MariaDB with innodb_snapshot_isolation: the row is newer than the snapshot
CHANGED = 1020
_KNOWN_MAX = 10_000
#: rows that were committed when this process looked, and until when none of them can have been swept
_known: dict[tuple[str, str, str], float] = {}


class MutexOfMySQL:
    """A key's row, which is committed by a session of its own before the caller's transaction locks it.

    Inserted by the caller, a rollback would turn the locks of those who wait for the row into gap locks, and they would
    deadlock when they insert it in their turn.
    """

    def __init__(self, connection: BaseDatabaseWrapper, table: str, key: str, name: Any, *, nowait: bool) -> None:
        self.connection, self.key = connection, key
        # The key as a statement takes it.
        self.name, self.place = name, place(name)
        self.table = connection.ops.quote_name(table)
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
            cursor.execute(
                f"INSERT INTO {self.table} (lock_key, takes, taken_at) VALUES ({self.place}, 1, UTC_TIMESTAMP(6)) "
                "ON DUPLICATE KEY UPDATE takes = takes + 1, taken_at = UTC_TIMESTAMP(6)"
                if found is None
                else f"UPDATE {self.table} FORCE INDEX (PRIMARY) SET takes = takes + 1, taken_at = UTC_TIMESTAMP(6) "
                f"WHERE lock_key = {self.place}",
                [self.name],
            )

    def _lock(self, cursor: Any) -> tuple[int, str, str | None] | None:
        """(takes, row as it is, row as this transaction's snapshot shows it); None where there is no row.

        The level of a transaction cannot be asked for, so all of them are compared. No plain read may come before the
        lock, it would open the snapshot before the last holder's commit: the inner one depends on the locked row.
        """
        cursor.execute(
            f"SELECT t.takes, CONCAT(t.takes, ' ', t.created_at), "
            f"(SELECT CONCAT(s.takes, ' ', s.created_at) FROM {self.table} AS s WHERE s.lock_key = t.lock_key) "
            f"FROM {self.table} AS t FORCE INDEX (PRIMARY) WHERE t.lock_key = {self.place} FOR UPDATE{self.suffix}",
            [self.name],
        )
        found: tuple[int, str, str | None] | None = cursor.fetchone()
        return found

    def _refuse_stale(self, cursor: Any, found: tuple[int, str, str | None] | None) -> None:
        if found is None:
            cursor.execute(f"SELECT 1 FROM {self.table} WHERE lock_key = {self.place}", [self.name])
            takes, unseen, is_same = 0, cursor.fetchone() is None, False
        else:
            takes, unseen, is_same = found[0], found[2] is None, found[1] == found[2]
        if is_same:
            return
        # A row that nobody has taken, of a key that the snapshot does not know: new, unless one was swept in between.
        if takes or not unseen or self._swept(cursor):
            raise stale_snapshot(self.key)

    def _swept(self, cursor: Any) -> bool:
        """Whether rows of mutexes have been deleted since the snapshot of this transaction."""
        floor = f"SELECT fence FROM job_lock_floor WHERE id = {MUTEX_FLOOR}"
        cursor.execute(f"{floor} LOCK IN SHARE MODE")
        now = cursor.fetchone()
        cursor.execute(floor)
        return bool(now != cursor.fetchone())

    def make(self, *, again: bool = False) -> None:
        """Commit the row by a session of its own, if this process has not seen it yet."""
        known = (self.connection.alias, str(self.connection.settings_dict["NAME"]), self.key)
        if not again and _known.get(known, 0.0) > time.monotonic():
            return
        with cursor_beside(self.connection.alias) as cursor:
            if cursor is not None and self._make(cursor):
                if len(_known) >= _KNOWN_MAX:
                    _known.clear()
                _known[known] = time.monotonic() + MUTEX_IDLE_SECONDS / 2

    def _make(self, cursor: Any) -> bool:
        """Whether there is a row that the sweeper will leave alone for a while."""
        young = f"TIMESTAMPADD(SECOND, -{MUTEX_IDLE_SECONDS // 2}, UTC_TIMESTAMP(6))"
        cursor.execute(
            f"SELECT COALESCE(taken_at, created_at) > {young} FROM {self.table} WHERE lock_key = {self.place}",
            [self.name],
        )
        found = cursor.fetchone()
        if found is not None:
            return bool(found[0])
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        try:
            cursor.execute(f"INSERT INTO {self.table} (lock_key) VALUES ({self.place})", [self.name])
        except IntegrityError:
            pass  # somebody else has just made it
        except OperationalError as error:
            if first_arg(error) not in NOT_YET:
                raise
            return False
        return True
