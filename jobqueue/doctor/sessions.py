"""The sessions of the server: room for those of the workers, old transactions, and rows that these keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connections
from django.utils import translation

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.doctor.finding import Finding, Level
from jobqueue.explain import row_locks
from jobqueue.explain.workers import WORKERS_MAX
from jobqueue.maintenance.worker_rows import alive
from jobqueue.models import Job
from jobqueue.worker.shared.worker_options import MONITOR_CONNECTIONS, PER_CHILD, PER_RELAY

#: how much of the server's limit may be in use
USED_SHARE = 0.9
#: a transaction that is open for longer makes claims slower
OLD_SECONDS, SHOWN = 300.0, 10
#: dead rows that autovacuum leaves, beside a share of the living ones
DEAD_MIN, DEAD_SHARE = 100_000, 0.1


@dataclass(frozen=True, slots=True)
class Budget:
    """The most connections that the workers that run may open to the queue's database."""

    commands: int
    processes: int
    threads: int

    @property
    def connections(self) -> int:
        """The number of connections, computed as docs/howto/own-database.md says."""
        outbox = load().outbox
        per_child = PER_CHILD + (PER_RELAY if outbox is not None and outbox.in_workers else 0)
        return MONITOR_CONNECTIONS * self.commands + per_child * self.processes + self.threads


def budget(using: str) -> Budget:
    """The connections of the running workers, computed from their rows."""
    rows = alive(load().worker_silent_seconds, using=using)
    threads: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    columns = ("host", "supervisor_pid", "boot_id", "concurrency")
    for host, pid, boot_id, concurrency in rows.values_list(*columns)[:WORKERS_MAX]:
        threads[host, pid, boot_id].append(concurrency)
    return Budget(len(threads), sum(map(len, threads.values())), sum(map(sum, threads.values())))


def connection_budget(using: str) -> Iterator[Finding]:
    """Checks connections_short and connections_used."""
    use = vendor(using).set_up.session_use(connections[using])
    if use is None:
        return
    workers = budget(using)
    age = connections[using].settings_dict["CONN_MAX_AGE"]
    evidence = {"limit": use.limit, "used": use.used, "workers_may_open": workers.connections, "conn_max_age": age}
    evidence |= {"commands": workers.commands, "processes": workers.processes, "threads": workers.threads}
    if workers.connections > use.limit:
        kept = "" if age == 0 else f" With CONN_MAX_AGE {age}, idle threads keep theirs."
        yield Finding(
            Level.WARNING,
            "connections_short",
            f"The workers that run may open {workers.connections} connections, and the server allows this account "
            f"{use.limit}: under load some are refused, web processes too.{kept}",
            "Run fewer worker processes, lower --concurrency, raise max_connections, or use a pooler; "
            "docs/howto/sizing.md#connections has the sum.",
            evidence,
        )
    if use.used >= USED_SHARE * use.limit:
        yield Finding(
            Level.WARNING,
            "connections_used",
            f"{use.used} of the {use.limit} connections that the server allows are open now.",
            "Find out who holds them (SHOW PROCESSLIST, pg_stat_activity), lower CONN_MAX_AGE, or raise "
            "max_connections.",
            evidence,
        )


def locked_tables(using: str) -> Iterator[Finding]:
    """table_locked."""
    with translation.override(None):
        found = row_locks.locked_tables(using)
    for one in found:
        yield Finding(
            Level.ERROR,
            "table_locked",
            f"{one.text} Workers cannot claim or end jobs, and leases run out.",
            f"{one.next_step} See docs/reference/explain.md#waits-for-locks.",
            dict(one.evidence),
        )


def old_transactions(using: str) -> Iterator[Finding]:
    """Check old_transaction."""
    found = vendor(using).set_up.old_transactions(connections[using], Job._meta.db_table, OLD_SECONDS, SHOWN)
    if not found:
        return
    oldest = found[0]
    does = "runs no statement, so a client hangs or has forgotten it" if oldest.idles else "still runs a statement"
    yield Finding(
        Level.WARNING,
        "old_transaction",
        f"Session {oldest.session} has had a transaction open for {oldest.seconds:.0f} s and {does}. It keeps its row "
        "locks, and claims become slower for as long as it is open.",
        f"End it (KILL {oldest.session} on MySQL and MariaDB, SELECT pg_terminate_backend({oldest.session}) on "
        "PostgreSQL); see docs/runbook/deadlocks.md#an-old-transaction.",
        {"sessions": [{"session": one.session, "seconds": one.seconds, "idles": one.idles} for one in found]},
    )


def dead_rows(using: str) -> Iterator[Finding]:
    """Check dead_rows."""
    table = Job._meta.db_table
    rows = vendor(using).set_up.dead_rows(connections[using], table)
    if rows is not None and rows.dead > max(DEAD_MIN, DEAD_SHARE * rows.live):
        yield Finding(
            Level.WARNING,
            "dead_rows",
            f"{table} has about {rows.dead} dead rows beside {rows.live} living ones. Claims read their index "
            "entries, too, and become slower.",
            "Let autovacuum start earlier, as docs/howto/postgresql-settings.md#vacuum-the-job-table-often shows. If "
            "there is an old transaction, end it first.",
            {"dead": rows.dead, "live": rows.live},
        )
