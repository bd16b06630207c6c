"""Statements that find the first of each kind by an index seek each, however many rows there are of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Seeks:
    """Part of Vendor."""

    def distinct_sql(self, table: str, column: str, index: str) -> str:
        """The first %s values of the column that leads `index`, in order: one seek each, however many rows have it."""
        least = f"SELECT MIN({column}) FROM {table}"
        return (
            f"WITH RECURSIVE found ({column}) AS ({least} UNION ALL "
            f"SELECT ({least} WHERE {column} > found.{column}) FROM found WHERE found.{column} IS NOT NULL) "
            f"SELECT {column} FROM found WHERE {column} IS NOT NULL LIMIT %s"
        )

    def distinct_after_sql(self, table: str, column: str, index: str) -> str:
        """As distinct_sql, for values above a first %s; the number of values is the second."""
        least = f"SELECT MIN({column}) FROM {table}"
        return (
            f"WITH RECURSIVE found ({column}) AS ({least} WHERE {column} > %s UNION ALL "
            f"SELECT ({least} WHERE {column} > found.{column}) FROM found WHERE found.{column} IS NOT NULL) "
            f"SELECT {column} FROM found WHERE {column} IS NOT NULL LIMIT %s"
        )

    def waiting_names_sql(self, table: str, index: str) -> str:
        """The queues with jobs that wait behind no gate; `index` leads with queue, status and gate."""
        # Not EXISTS, which a planner may turn into a join; and in the order of the index, or it may read all jobs.
        first = (
            f"SELECT 1 FROM {table} AS j WHERE j.queue = names.queue AND j.status = 0 AND j.gate = 0 "
            "ORDER BY j.priority, j.run_at, j.id LIMIT 1"
        )
        names = self.distinct_sql(table, "queue", index).removesuffix(" LIMIT %s")
        return f"SELECT names.queue FROM ({names}) AS names WHERE ({first}) IS NOT NULL"

    def heads_after_sql(self, table: str, column: str, index: str) -> str:
        """As distinct_after_sql, each value with the lowest id among its rows; `index` has the id behind the column."""
        sql = self.distinct_after_sql(table, column, index)
        return f"SELECT f.{column}, (SELECT MIN(id) FROM {table} WHERE {column} = f.{column}) FROM ({sql}) AS f"

    def next_in_lanes_sql(self, places: str, jobs: str, after: Sequence[tuple[int, int]]) -> tuple[str, list[Any]]:
        """For each (lane, id) of `after` the first row of `places` in that lane behind that id, and its job's state.

        The lookups are a table of constants; one seek each, by the index on lane and id.
        """
        wanted = " UNION ALL ".join(f"SELECT {lane:d} AS lane, {place:d} AS after" for lane, place in after)
        # By lane and id, which one index gives in this order: with id alone an optimizer may walk the primary key.
        first = f"SELECT f.id FROM {places} f WHERE f.lane = w.lane AND f.id > w.after ORDER BY f.lane, f.id LIMIT 1"
        sql = (
            "SELECT p.id, p.lane, p.job_id, p.halted, j.status, j.gate, j.queue "
            f"FROM (SELECT ({first}) AS id FROM ({wanted}) w) h JOIN {places} p ON p.id = h.id "
            f"LEFT JOIN {jobs} j ON j.id = p.job_id"
        )
        return sql, []
