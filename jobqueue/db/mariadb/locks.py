"""Row locks of querysets with joins, on MariaDB, which has no FOR UPDATE OF: a join locks the joined rows too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.callers_transaction import once_per_session
from jobqueue.db.locks import M
from jobqueue.db.mysql.locks import MySQLLocks
from jobqueue.db.mysql.statements import force_index, update_by_key
from jobqueue.db.statements import Parameter


class MariaDBLocks(MySQLLocks):
    """Where MariaDB differs from MySQL."""

    least_lock_wait_seconds = 0.0
    #: that of a lock timeout
    nowait_error = 1205

    def being_inserted(
        self, connection: BaseDatabaseWrapper, model: type[M], columns: Sequence[str], keys: Sequence[tuple[int, ...]]
    ) -> set[tuple[int, ...]]:
        """As on MySQL; not asked where the server undoes the whole transaction for a lock timeout, as it may be set."""
        undoes = once_per_session(connection, "_jobqueue_undoes", lambda: self._rolled_back(connection))
        return set() if undoes else super().being_inserted(connection, model, columns, keys)

    def lock_first(self, queryset: QuerySet[M], count: int, *, skip_locked: bool = True) -> list[M]:
        """Where the queryset joins, by key alone: there is no FOR UPDATE OF, and all would queue for a joined row."""
        if not _joins(queryset):
            return super().lock_first(queryset, count, skip_locked=skip_locked)
        return self.find_and_lock(queryset, count, lambda keys: self._lock_alone(queryset, keys, skip_locked))

    def mutex_parameter(self, key: str) -> Parameter:
        """As it is: MariaDB shows statements whatever is in them."""
        return key

    def _lock_alone(self, queryset: QuerySet[M], keys: list[Any], skip_locked: bool) -> list[M]:
        """Those of `keys` that are in the queryset, locked in their own table only."""
        alone = _alone(queryset, keys)
        locking = force_index(alone, "PRIMARY").select_for_update(skip_locked=skip_locked)
        newest = {row["pk"]: row for row in locking.values("pk", *_columns(queryset))}
        shown = {row["pk"]: row for row in alone.filter(pk__in=newest).values("pk", *_columns(queryset))}
        mine = queryset.filter(pk__in=newest)
        # A plain read, so only as good as the snapshot; where that is old, the joined rows must be locked too.
        return list(mine if newest == shown else self.lock_own(mine, skip_locked=skip_locked))

    def update_locked(self, queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
        """By key alone too: a subquery of an UPDATE locks what it reads."""
        if not _joins(queryset):
            return update_by_key(queryset, changes)
        return update_by_key(_alone(queryset, list(queryset.values_list("pk", flat=True))), changes)


def _alone(queryset: QuerySet[M], keys: list[Any]) -> QuerySet[M]:
    return queryset.model._base_manager.using(queryset.db).order_by().filter(pk__in=keys)


def _columns(queryset: QuerySet[Any]) -> list[str]:
    return [field.attname for field in queryset.model._meta.concrete_fields]


def _joins(queryset: QuerySet[Any]) -> bool:
    try:
        return " JOIN " in queryset.query.get_compiler(queryset.db).as_sql()[0]
    except EmptyResultSet:
        return False
