"""Seeks, rows found by their ids, and the text before a claim, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.statements import GroupSeek, LooseScan, Parameter, Q, Statements, bind

#: for the transaction that a statement with these in front of it is
_IN_INDEX_ORDER = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off; "


class PostgreSQLStatements(Statements):
    """The planner has no hints, so the text of a statement must leave it no other plan."""

    # Planned as a value that is not known yet.
    unestimated_sql = "(SELECT %s)"
    part_number_sql = "(FLOOR(EXTRACT(EPOCH FROM %(expressions)s))::bigint / %(size)s)"
    joins_laterally = True
    compares_rows = True
    for_share_sql = "FOR SHARE"
    returning_id_sql = "RETURNING id"

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """By a subquery: where the statistics know no job of a queue or state, its index looks cheaper than it is."""
        # OFFSET 0 keeps all other conditions from choosing a plan.
        part = f"SELECT * FROM {{table}} WHERE {{key}} > {above:d} AND {{key}} <= {up_to:d} OFFSET 0"
        return bind(queryset, f"({part}) {{alias}}")

    @contextmanager
    def in_index_order(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """By the text before the statement, in the same round trip: one simple query is one transaction.

        After a burst into an emptied table the statistics say that a few jobs wait, and the planner would read and sort
        all of them for each claim, until the next ANALYZE. Not in a transaction, in which the settings would stay, and
        not with binding by the server, which takes one statement at a time.
        """
        driver, bound = connection.Database.__name__, connection.settings_dict["OPTIONS"].get("server_side_binding")  # type: ignore[attr-defined]
        if bound or driver != "psycopg" or in_callers_transaction(connection):
            yield
            return

        def unsorted(execute: Callable[..., Parameter], sql: str, params: Any, many: bool, context: Any) -> Parameter:
            result = execute(_IN_INDEX_ORDER + sql, params, many, context)
            # The rows are those of the last statement.
            while context["cursor"].nextset():
                pass
            return result

        # Entered last, so it is the innermost: others see the statement alone.
        with connection.execute_wrapper(unsorted):
            yield

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """By a seek each: of a small table, or what it takes for one, PostgreSQL would read all rows for a long IN."""
        text = ",".join(str(int(one)) for one in ids)
        seek = "SELECT * FROM {table} WHERE {key} = w.wanted LIMIT 1"
        part = f"SELECT j.* FROM unnest('{{{{{text}}}}}'::bigint[]) AS w (wanted) CROSS JOIN LATERAL ({seek}) AS j"
        return bind(queryset, f"({part} OFFSET 0) {{alias}}")

    def loose_scan_sql(self, scan: LooseScan) -> str:
        """With ids by the index's own order: MIN(id) of one value could walk the primary key, over all history."""
        if not scan.with_id:
            return super().loose_scan_sql(scan)
        assert scan.after, "a first value to begin behind"
        (column,) = scan.columns
        first = f"SELECT {column}, id FROM {scan.table} WHERE {column} >"
        in_order = f"ORDER BY {column}, id LIMIT 1"
        return (
            f"WITH RECURSIVE found ({column}, id) AS (({first} %s {in_order}) UNION ALL "
            f"SELECT ahead.{column}, ahead.id "
            f"FROM found CROSS JOIN LATERAL ({first} found.{column} {in_order}) AS ahead) "
            f"SELECT {column}, id FROM found LIMIT %s"
        )

    def next_in_groups_sql(self, seek: GroupSeek, after: Sequence[tuple[int, int]]) -> tuple[str, list[Parameter]]:
        """From two arrays: the planner would plan each SELECT of a UNION ALL by itself, which took longer than the run.

        LIMIT within LATERAL keeps the plan a seek for each group, whatever the statistics say.
        """
        group = seek.group
        columns = [*(f"p.{name}" for name in seek.columns), *(f"j.{name}" for name in seek.other_columns)]
        sql = (
            f"SELECT {', '.join(columns)} "
            f"FROM unnest(%s::bigint[], %s::bigint[]) AS w ({group}, after) "
            f"CROSS JOIN LATERAL (SELECT {', '.join(f'f.{name}' for name in seek.columns)} FROM {seek.table} f "
            f"WHERE f.{group} = w.{group} AND f.id > w.after ORDER BY f.{group}, f.id LIMIT 1) AS p "
            f"LEFT JOIN LATERAL (SELECT {', '.join(seek.other_columns)} FROM {seek.other} "
            f"WHERE id = p.{seek.link} LIMIT 1) AS j ON true"
        )
        return sql, [[number for number, _ in after], [last for _, last in after]]
