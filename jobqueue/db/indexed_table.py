"""A query that is bound to an index by a hint behind the name of its table, or to some ids by a subquery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.datastructures import BaseTable

from jobqueue.db.parameters import Statement

Q = TypeVar("Q", bound=models.QuerySet[Any, Any])


class IndexedTable(BaseTable):
    """A FROM entry with a hint: the optimizer must not trade the index for a sort, or for a walk over other rows."""

    hint = index = ""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        sql, params = super().as_sql(compiler, connection)
        return f"{sql} {self.hint.format(connection.ops.quote_name(self.index))}", params

    def relabeled_clone(self, change_map: Mapping[str | None, str]) -> IndexedTable:
        """The same hint when the query becomes a subquery."""
        clone = IndexedTable(self.table_name, change_map.get(self.table_alias, self.table_alias))
        clone.hint, clone.index = self.hint, self.index
        return clone


def bind(queryset: Q, hint: str, index: str) -> Q:
    """The same query with `hint`, such as "FORCE INDEX ({})"."""
    hinted = queryset.all()
    alias = hinted.query.get_initial_alias()
    table = IndexedTable(hinted.model._meta.db_table, alias or "")
    table.hint, table.index = hint, index
    hinted.query.alias_map[alias] = table
    return hinted


class Part(BaseTable):
    """A FROM entry of some of the table's rows. `select` is a subquery with the names of the table and of its key."""

    select = ""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        table, alias, key = map(connection.ops.quote_name, (self.table_name, self.table_alias or "", "id"))
        return f"({self.select.format(table=table, key=key)}) {alias}", []

    def relabeled_clone(self, change_map: Mapping[str | None, str]) -> Part:
        """The same rows when the query becomes a subquery."""
        clone = Part(self.table_name, change_map.get(self.table_alias, self.table_alias))
        clone.select = self.select
        return clone


def bind_part(queryset: Q, select: str) -> Q:
    """The same query over the rows of a subquery, such as "SELECT * FROM {table} WHERE {key} > 5 OFFSET 0"."""
    bound = queryset.all()
    alias = bound.query.get_initial_alias()
    part = Part(bound.model._meta.db_table, alias or "")
    part.select = select
    bound.query.alias_map[alias] = part
    return bound
