"""MariaDB 10.6 and later: MySQL with RETURNING on INSERT and its own collations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.base import M, Vendor
from jobqueue.db.lock_facts import HeldLocks
from jobqueue.db.mariadb.held import mariadb_held
from jobqueue.db.mariadb.monitor import MariaDBMonitor
from jobqueue.db.mysql.vendor import MySQL


class MariaDB(MySQL):
    """Where MariaDB differs from MySQL."""

    name = "MariaDB"
    unpadded_collation = "utf8mb4_nopad_bin"
    oldest = (10, 6, 0)
    monitor = MariaDBMonitor()
    least_lock_wait_seconds = 0.0

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Any:
        """As it is: JSON is kept as it was written, and statements of others are shown whatever is in them."""
        return text

    def text_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Any:
        """As it is."""
        return text

    def insert(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> list[int]:
        """INSERT ... RETURNING id."""
        return Vendor.insert(self, connection, table, columns, rows)

    def insert_one(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], row: Sequence[Any]
    ) -> tuple[int, Any]:
        """INSERT ... RETURNING id, created_at."""
        return Vendor.insert_one(self, connection, table, columns, row)

    def lock_first(self, queryset: QuerySet[M], count: int, *, skip_locked: bool = True) -> list[M]:
        """Where the queryset joins, by key alone: there is no FOR UPDATE OF, and all would queue for a joined row."""
        if not _joins(queryset):
            return super().lock_first(queryset, count, skip_locked=skip_locked)
        return self.find_and_lock(queryset, count, lambda keys: self._lock_alone(queryset, keys, skip_locked))

    def _lock_alone(self, queryset: QuerySet[M], keys: list[Any], skip_locked: bool) -> list[M]:
        """Those of `keys` that are in the queryset, locked in their own table only."""
        alone = _alone(queryset, keys)
        locking = self.force_index(alone, "PRIMARY").select_for_update(skip_locked=skip_locked)
        newest = {row["pk"]: row for row in locking.values("pk", *_columns(queryset))}
        shown = {row["pk"]: row for row in alone.filter(pk__in=newest).values("pk", *_columns(queryset))}
        mine = queryset.filter(pk__in=newest)
        # A plain read, so only as good as the snapshot; where that is old, the joined rows must be locked too.
        return list(mine if newest == shown else self.lock_own(mine, skip_locked=skip_locked))

    def update_locked(self, queryset: QuerySet[Any], changes: Mapping[str, Any]) -> int:
        """By key alone too: a subquery of an UPDATE locks what it reads."""
        if not _joins(queryset):
            return self.update_by_key(queryset, changes)
        return self.update_by_key(_alone(queryset, list(queryset.values_list("pk", flat=True))), changes)

    def held_locks(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """The InnoDB monitor: the only place that lists locks nobody waits for."""
        return mariadb_held(connection)


def _alone(queryset: QuerySet[M], keys: list[Any]) -> QuerySet[M]:
    return queryset.model._base_manager.using(queryset.db).order_by().filter(pk__in=keys)


def _columns(queryset: QuerySet[Any]) -> list[str]:
    return [field.attname for field in queryset.model._meta.concrete_fields]


def _joins(queryset: QuerySet[Any]) -> bool:
    try:
        return " JOIN " in queryset.query.get_compiler(queryset.db).as_sql()[0]
    except EmptyResultSet:
        return False
