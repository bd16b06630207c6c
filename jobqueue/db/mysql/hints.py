"""FORCE INDEX, on MySQL and MariaDB: InnoDB locks what it reads, so the optimizer must not choose another index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.deletes import delete_listed
from jobqueue.db.indexed_table import Q, bind
from jobqueue.db.parameters import Parameter

LIMIT_MAX = 2**31


def force_index(queryset: Q, index: str) -> Q:
    """Without it the optimizer may read, sort and so lock the whole backlog."""
    return bind(queryset, "FORCE INDEX ({})", index)


def update_by_key(queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
    """With FORCE INDEX (PRIMARY): led by another index, the UPDATE would wait for rows it does not change."""
    connection = connections[queryset.db]

    def hinted(execute: Callable[..., Parameter], sql: str, *rest: object) -> Parameter:
        return execute(by_key_sql(connection, queryset.model._meta.db_table, sql), *rest)

    with connection.execute_wrapper(hinted):
        return queryset.update(**changes)


def update_unlocked(locking: QuerySet[Any], changes: Mapping[str, object]) -> int:
    """Update the rows that `locking`, a SELECT ... SKIP LOCKED, returns.

    STRAIGHT_JOIN and LIMIT keep the optimizer from merging the SELECT into the UPDATE, which would lose SKIP LOCKED.
    Without the index MariaDB scans a small table, and waits for the rows that the SELECT has skipped.
    """
    connection = connections[locking.db]
    quote = connection.ops.quote_name
    table = quote(locking.model._meta.db_table)
    select, selected = locking.values_list("id")[:LIMIT_MAX].query.sql_with_params()

    key = f"{table}.{quote('id')} = unlocked.{quote('id')}"
    start = f"UPDATE ({select}) AS unlocked STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {key} "

    def joined(execute: Callable[..., Parameter], sql: str, params: Sequence[object], *rest: object) -> Parameter:
        begin = f"UPDATE {table} "
        if not sql.startswith(begin):
            return execute(sql, params, *rest)
        return execute(start + sql.removeprefix(begin), (*selected, *params), *rest)

    with connection.execute_wrapper(joined):
        return int(locking.model._base_manager.using(locking.db).update(**changes))


def by_key_sql(connection: BaseDatabaseWrapper, table: str, sql: str) -> str:
    """An UPDATE of `table` with FORCE INDEX (PRIMARY); other statements as they are."""
    begin = f"UPDATE {connection.ops.quote_name(table)} "
    return f"{begin}FORCE INDEX (PRIMARY) {sql.removeprefix(begin)}" if sql.startswith(begin) else sql


def delete_by_key(queryset: QuerySet[Any], keys: Sequence[int]) -> int:
    """With FORCE INDEX (PRIMARY): a scan of a small table would wait for rows that others are inserting."""
    sql = "DELETE t FROM {table} AS t FORCE INDEX (PRIMARY) WHERE t.{key} IN ({keys})"
    return delete_listed(queryset, keys, sql)
