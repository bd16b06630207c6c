"""A minimal outbox: rows, and a relay that claims 100 of them and marks them in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reference import _JSON, _NOW, _TYPES
from benchmarks.target import Target, execute, rows

TABLE = "bench_outbox"


def create_table(target: Target) -> None:
    """One table, one index."""
    family = "mysql" if target.mysql_like else target.kind
    kinds, now = _TYPES[family], _NOW[family][0]
    connection = target.connect()
    execute(
        connection,
        f"CREATE TABLE {TABLE} (id {kinds['id']}, topic VARCHAR(255) NOT NULL, payload {_JSON[target.kind]} NOT NULL, "
        f"created_at {kinds['instant']} NOT NULL DEFAULT ({now}), processed_at {kinds['instant']} NULL)",
    )
    execute(connection, f"CREATE INDEX ix_bench_outbox ON {TABLE} (processed_at, id)")
    connection.close()


class ReferenceOutbox:
    """Publish and relay on a connection of its own, without keys, leases, attempts and deliveries."""

    def __init__(self, target: Target) -> None:
        """Open the connection and build the statements."""
        family = "mysql" if target.mysql_like else target.kind
        self.connection = target.connect()
        self.mark = "?" if target.kind == "sqlite" else "%s"
        self.begin = "BEGIN IMMEDIATE" if target.kind == "sqlite" else "BEGIN"
        self.wipe = f"DELETE FROM {TABLE}" if target.kind == "sqlite" else f"TRUNCATE TABLE {TABLE}"
        skip = "" if target.kind == "sqlite" else " FOR UPDATE SKIP LOCKED"
        self.add = f"INSERT INTO {TABLE} (topic, payload) VALUES ({self.mark}, {self.mark})"
        self.pick = f"SELECT id, payload FROM {TABLE} WHERE processed_at IS NULL ORDER BY id LIMIT {self.mark}{skip}"
        self.end = f"UPDATE {TABLE} SET processed_at = {_NOW[family][0]} WHERE id IN ({{ids}})"

    def empty(self) -> None:
        """Delete all rows."""
        execute(self.connection, self.wipe)

    def publish(self, payloads: Sequence[str], topic: str) -> None:
        """Insert each event with an INSERT of its own, and commit once."""
        execute(self.connection, self.begin)
        for payload in payloads:
            execute(self.connection, self.add, [topic, payload])
        execute(self.connection, "COMMIT")

    def relay(self, limit: int) -> int:
        """Claim and mark in one transaction. Returns how many."""
        execute(self.connection, self.begin)
        ids = [row[0] for row in rows(self.connection, self.pick, [limit])]
        if ids:
            execute(self.connection, self.end.format(ids=", ".join([self.mark] * len(ids))), ids)
        execute(self.connection, "COMMIT")
        return len(ids)
