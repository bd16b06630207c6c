"""Fill a job table with INSERT ... SELECT: a million rows in seconds, without the API of a queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.target import Target, execute

OURS = "job_queue"
REFERENCE = "bench_reference"
_BLOCK = 10_000
_STATEMENT_ROWS = 200_000
PAYLOAD = '{"args": [], "kwargs": {}}'


def make_numbers(target: Target) -> None:
    """Create the helper table with the numbers 0 to 9,999."""
    connection = target.connect()
    execute(connection, "CREATE TABLE bench_numbers (n INT NOT NULL PRIMARY KEY)")
    digit = "(" + " UNION ALL ".join(f"SELECT {i}{' AS n' if i == 0 else ''}" for i in range(10)) + ")"
    source = f"{digit} AS a, {digit} AS b, {digit} AS c, {digit} AS d"
    execute(connection, f"INSERT INTO bench_numbers SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n FROM {source}")
    connection.close()


def fill(
    target: Target,
    connection: Any,
    table: str,
    count: int,
    *,
    task: str = "benchmarks.tasks.noop",
    queue: str = "bench",
    finished: bool = False,
    delayed: bool = False,
) -> None:
    """Insert `count` jobs that are due, that are finished, or that are due tomorrow, with five priorities."""
    now = datetime.now(UTC)
    zone = "+00" if target.kind == "postgres" else ""
    when = now + timedelta(days=1) if delayed else now - timedelta(hours=1)
    run_at = f"'{when.strftime('%Y-%m-%d %H:%M:%S.%f')}{zone}'"
    columns = {"queue": f"'{queue}'", "status": "2" if finished else "0", "run_at": run_at, "payload": f"'{PAYLOAD}'"}
    columns["priority"] = "(b.n % 5) - 2" if delayed else "0"
    if table == OURS:
        columns["task"] = f"'{task}'"
    if finished:
        columns["finished_at"] = run_at
    into = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())}"
    while count > 0:
        blocks = min(count, _STATEMENT_ROWS) // _BLOCK
        part = blocks * _BLOCK or count
        where = f"a.n < {blocks}" if blocks else f"a.n = 0 AND b.n < {count}"
        execute(connection, f"{into} FROM bench_numbers AS a CROSS JOIN bench_numbers AS b WHERE {where}")
        count -= part


def empty(target: Target, connection: Any, table: str) -> None:
    """Delete all rows."""
    execute(connection, f"DELETE FROM {table}" if target.kind == "sqlite" else f"TRUNCATE TABLE {table}")


def refresh(target: Target, connection: Any, table: str) -> None:
    """Update the statistics of the table, and let the server write changed pages to disk.

    Otherwise the server would write them during the measurement, and more of them in a larger table.
    """
    statement = {"postgres": "VACUUM ANALYZE {}", "sqlite": "ANALYZE {}"}.get(target.kind, "ANALYZE TABLE {}")
    cursor = execute(connection, statement.format(table))
    if target.mysql_like:
        cursor.fetchall()
        # This statement prepares a table for a copy of its files, so it writes all changed pages.
        execute(connection, f"FLUSH TABLES {table} FOR EXPORT")
        execute(connection, "UNLOCK TABLES")
    elif target.kind == "postgres":
        execute(connection, "CHECKPOINT")
    else:
        execute(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
