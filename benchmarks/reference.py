"""The reference: hand-written SQL through the driver, which does the same durable work on its own table."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.fill import REFERENCE
from benchmarks.target import Target, execute, rows

_TYPES = {
    "mysql": {"id": "BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY", "instant": "DATETIME(6)", "token": "BINARY(16)"},
    "postgres": {"id": "BIGSERIAL PRIMARY KEY", "instant": "TIMESTAMPTZ", "token": "BYTEA"},
    "sqlite": {"id": "INTEGER PRIMARY KEY AUTOINCREMENT", "instant": "DATETIME", "token": "BLOB"},
}
_JSON = {"mysql": "JSON", "mariadb": "JSON", "postgres": "JSONB", "sqlite": "TEXT"}
_NOW = {
    "mysql": ("UTC_TIMESTAMP(6)", "TIMESTAMPADD(SECOND, 60, UTC_TIMESTAMP(6))"),
    "postgres": ("statement_timestamp()", "statement_timestamp() + interval '60 seconds'"),
    "sqlite": ("strftime('%Y-%m-%d %H:%M:%f', 'now')", "strftime('%Y-%m-%d %H:%M:%f', 'now', '60 seconds')"),
}
# The usual columns; the index has the order of the claim.
_TABLE = """
CREATE TABLE {table} (
    id {id}, queue VARCHAR(64) NOT NULL, status SMALLINT NOT NULL DEFAULT 0, priority INT NOT NULL DEFAULT 0,
    run_at {instant} NOT NULL DEFAULT ({now}), attempts INT NOT NULL DEFAULT 0, max_attempts INT NOT NULL DEFAULT 25,
    payload {json} NOT NULL, result {json} NULL, last_error TEXT NULL, locked_by VARCHAR(128) NULL,
    lock_token {token} NULL, locked_at {instant} NULL, lock_until {instant} NULL, dedupe_key VARCHAR(64) NULL,
    created_at {instant} NOT NULL DEFAULT ({now}), updated_at {instant} NOT NULL DEFAULT ({now}),
    finished_at {instant} NULL)
"""
_INDEXES = {
    "ref_dedupe": ("UNIQUE INDEX", "queue, dedupe_key"),
    "ref_pick": ("INDEX", "queue, status, priority, run_at, id"),
    "ref_lease": ("INDEX", "status, lock_until"),
    "ref_worker": ("INDEX", "locked_by, status"),
}


def create_table(target: Target) -> None:
    """Create the table of the reference."""
    family = "mysql" if target.mysql_like else target.kind
    connection = target.connect()
    words = {**_TYPES[family], "json": _JSON[target.kind], "now": _NOW[family][0], "table": REFERENCE}
    execute(connection, _TABLE.format(**words))
    for name, (kind, columns) in _INDEXES.items():
        execute(connection, f"CREATE {kind} {name} ON {REFERENCE} ({columns})")
    connection.close()


class Reference:
    """Enqueue, claim and finish, each with as few statements as possible."""

    def __init__(self, target: Target) -> None:
        """Open the connection and build the statements."""
        family = "mysql" if target.mysql_like else target.kind
        self.connection = target.connect()
        self.mark = "?" if target.kind == "sqlite" else "%s"
        self.begin = "BEGIN IMMEDIATE" if target.kind == "sqlite" else "BEGIN"
        self.now, later = _NOW[family]
        skip = "" if target.kind == "sqlite" else " FOR UPDATE SKIP LOCKED"
        m = self.mark
        self.pick = (
            f"SELECT id, payload FROM {REFERENCE} WHERE queue = {m} AND status = 0 AND priority = 0 "
            f"AND run_at <= {self.now} ORDER BY run_at, id LIMIT {m}{skip}"
        )
        self.take = (
            f"UPDATE {REFERENCE} SET status = 1, locked_by = {m}, lock_token = {m}, locked_at = {self.now}, "
            f"lock_until = {later}, updated_at = {self.now} WHERE id IN ({{ids}})"
        )
        self.end = (
            f"UPDATE {REFERENCE} SET status = 2, result = {{result}}, locked_by = NULL, lock_token = NULL, "
            f"locked_at = NULL, lock_until = NULL, updated_at = {self.now}, finished_at = {self.now} "
            f"WHERE id IN ({{ids}}) AND lock_token = {m}"
        )
        # A JSON value inside CASE is text to PostgreSQL.
        self.cast = "::jsonb" if target.kind == "postgres" else ""
        self.one = f"({m}, 0, 0, {self.now}, {m})"

    def enqueue(self, payloads: Sequence[Any]) -> None:
        """One INSERT, committed."""
        values: list[Any] = []
        for payload in payloads:
            values += ["bench", json.dumps(payload)]
        many = ", ".join([self.one] * len(payloads))
        sql = f"INSERT INTO {REFERENCE} (queue, status, priority, run_at, payload) VALUES {many}"
        execute(self.connection, sql, values)

    def claim(self, limit: int, queue: str = "bench") -> tuple[list[int], bytes]:
        """Claim jobs and commit. Returns their ids and the token."""
        token = os.urandom(16)
        execute(self.connection, self.begin)
        ids = [row[0] for row in rows(self.connection, self.pick, [queue, limit])]
        if ids:
            sql = self.take.format(ids=self._marks(ids))
            execute(self.connection, sql, [f"reference:{os.getpid()}", token, *ids])
        execute(self.connection, "COMMIT")
        return ids, token

    def finish(self, ids: Sequence[int], token: bytes, result: str | None = None) -> int:
        """Finish jobs with one UPDATE and commit. Returns how many."""
        text, values = "NULL", []
        if result is not None:
            when = " ".join([f"WHEN {self.mark} THEN {self.mark}{self.cast}"] * len(ids))
            text = f"CASE id {when} END"
            for job_id in ids:
                values += [job_id, result]
        sql = self.end.format(result=text, ids=self._marks(ids))
        return int(execute(self.connection, sql, [*values, *ids, token]).rowcount)

    def _marks(self, ids: Sequence[int]) -> str:
        return ", ".join([self.mark] * len(ids))
