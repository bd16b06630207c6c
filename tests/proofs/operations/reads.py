"""How many rows of the table of jobs a command has read, by the server's own count."""

from __future__ import annotations

from dataclasses import dataclass

from tests.proofs.schedules.rows import run
from tests.settings import VENDOR

_SQL = {
    "mysql": (
        "SELECT SUM(IF(index_name IS NULL, count_fetch, 0)), SUM(count_fetch) "
        "FROM performance_schema.table_io_waits_summary_by_index_usage "
        "WHERE object_schema = DATABASE() AND object_name = 'job_queue'"
    ),
    # It counts the scans of all tables, and no reads by table.
    "mariadb": (
        "SELECT SUM(IF(variable_name = 'HANDLER_READ_RND_NEXT', variable_value, 0)), SUM(variable_value) "
        "FROM information_schema.global_status WHERE variable_name LIKE 'HANDLER\\_READ\\_%%'"
    ),
    "postgres": (
        "SELECT seq_tup_read, seq_tup_read + (SELECT COALESCE(SUM(idx_tup_read), 0) "
        "FROM pg_stat_user_indexes WHERE relname = 'job_queue') FROM pg_stat_user_tables WHERE relname = 'job_queue'"
    ),
}


@dataclass(frozen=True)
class Reads:
    """`scanned`: rows of table scans; `rows`: these and those that were found by an index."""

    scanned: int
    rows: int

    def since(self, before: Reads) -> Reads:
        """What was read between the two."""
        return Reads(self.scanned - before.scanned, self.rows - before.rows)


def reads() -> Reads | None:
    """Up to now, by all sessions that have ended; None on SQLite, which counts nothing."""
    if VENDOR == "sqlite":
        return None
    if VENDOR == "postgres":
        run("SELECT pg_stat_force_next_flush()")
        run("SELECT pg_stat_clear_snapshot()")
    ((scanned, rows),) = run(_SQL[VENDOR])
    return Reads(int(scanned or 0), int(rows or 0))
