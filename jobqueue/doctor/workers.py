"""The workers: room for their connections, whether they run and serve every queue, and leases that nobody has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import connections

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.doctor.finding import SHOWN, Finding, Level, Need, check, listed, report
from jobqueue.explain.workers import WORKERS_MAX
from jobqueue.maintenance.worker_rows import alive
from jobqueue.models import Job, Worker
from jobqueue.transitions.claiming.candidates import waiting_names
from jobqueue.worker.shared.queue_choice import stored_selection
from jobqueue.worker.shared.worker_options import MONITOR_CONNECTIONS, PER_CHILD, PER_RELAY

#: how much of the server's limit of connections may be in use
USED_SHARE = 0.9
#: workers reap about once a second; a pass may take a few
GRACE_SECONDS = 10.0
COUNT_MAX = 1000


@dataclass(frozen=True, slots=True)
class Budget:
    """The most connections that the workers that run may open to the queue's database."""

    commands: int
    processes: int
    threads: int

    @property
    def connections(self) -> int:
        """The number of connections, computed as docs/howto/sizing.md says."""
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


@check(
    "connections",
    "the server has room for the connections of all workers",
    Need.TABLES,
    connections_short=Level.WARNING,
    connections_used=Level.WARNING,
)
def connection_budget(using: str) -> Iterator[Finding]:
    """Compares what the server allows with what the workers may open, and with what is open."""
    use = vendor(using).session_use(connections[using])
    if use is None:
        return
    workers = budget(using)
    age = connections[using].settings_dict["CONN_MAX_AGE"]
    evidence = {"limit": use.limit, "used": use.used, "workers_may_open": workers.connections, "conn_max_age": age}
    evidence |= {"commands": workers.commands, "processes": workers.processes, "threads": workers.threads}
    if workers.connections > use.limit:
        kept = "" if age == 0 else f" With CONN_MAX_AGE {age}, idle threads keep theirs."
        yield report(
            "connections_short",
            f"The workers that run may open {workers.connections} connections, and the server allows this account "
            f"{use.limit}: under load some are refused, web processes too.{kept}",
            "Run fewer worker processes, lower --concurrency, raise max_connections, or use a pooler; "
            "docs/howto/sizing.md#connections has the sum.",
            evidence,
        )
    if use.used >= USED_SHARE * use.limit:
        yield report(
            "connections_used",
            f"{use.used} of the {use.limit} connections that the server allows are open now.",
            "Find out who holds them (SHOW PROCESSLIST, pg_stat_activity), lower CONN_MAX_AGE, or raise "
            "max_connections.",
            evidence,
        )


@check(
    "workers",
    "workers run, and send heartbeats",
    Need.TABLES,
    of_writers=True,
    no_worker=Level.WARNING,
    worker_silent=Level.WARNING,
)
def workers(using: str) -> Iterator[Finding]:
    """Whether any runs, and which are silent. Without a worker it is an error if jobs wait."""
    seconds = load().worker_silent_seconds
    running = {*alive(seconds, using=using).values_list("name", flat=True)[:WORKERS_MAX]}
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True).order_by("heartbeat_at")
    silent = [row for row in rows.values_list("name", "host", "heartbeat_at")[:WORKERS_MAX] if row[0] not in running]
    if not running:
        waiting = sorted(waiting_names(using=using))
        waits = f" Jobs wait in {listed(waiting, SHOWN)}." if waiting else ""
        yield report(
            "no_worker",
            f"No worker is running, so no job starts.{waits}",
            "Start one: python manage.py runworker",
            {"queues": list(waiting[:SHOWN]), "silent": len(silent)},
            level=Level.ERROR if waiting else None,
        )
    if silent:
        yield _silent(silent, read_now(using))


def _silent(silent: list[tuple[str, str, datetime]], now: datetime) -> Finding:
    name, host, seen_at = silent[0]
    others = f", and {len(silent) - 1} others for less" if len(silent) > 1 else ""
    return report(
        "worker_silent",
        f"Worker {name} on {host} has sent no heartbeat for {(now - seen_at).total_seconds():.0f} s, and has not "
        f"stopped{others}: it was killed, hangs, or has lost the database.",
        "Look at their hosts and logs. Other workers end their leases; reap_leases marks their rows. See "
        "docs/runbook/leases-run-out.md.",
        {"workers": [{"name": one[0], "host": one[1], "heartbeat_at": one[2].isoformat()} for one in silent[:SHOWN]]},
    )


@check("versions", "all workers run one version", Need.TABLES, worker_versions=Level.WARNING)
def worker_versions(using: str) -> Iterator[Finding]:
    """By the rows of the workers that run."""
    rows = alive(load().worker_silent_seconds, using=using).values_list("version", flat=True)
    if len(found := Counter(rows[:WORKERS_MAX])) > 1:
        text = ", ".join(f"{version} ({number})" for version, number in sorted(found.items()))
        yield report(
            "worker_versions",
            f"The workers run several versions of jobqueue: {text}. Limits and options that the older one does not "
            "know bind only some of them.",
            "If no deploy is under way, restart the workers that have the old one.",
            {"versions": dict(found)},
        )


@check("served", "all queues with jobs are served", Need.TABLES, queue_unserved=Level.ERROR)
def unserved_queues(using: str) -> Iterator[Finding]:
    """Finds nothing where no worker runs: that is another finding."""
    rows = alive(load().worker_silent_seconds, using=using).values_list("queues", flat=True)
    choices = [stored_selection(queues) for queues in {*rows[:WORKERS_MAX]}]
    if not choices:
        return
    names = [name for name in waiting_names(using=using) if not any(choice.serves(name) for choice in choices)]
    if names := sorted(names):
        yield report(
            "queue_unserved",
            f"Jobs wait in queues that no worker serves: {listed(names, SHOWN)}.",
            f"Start a worker for them: python manage.py runworker --queues={','.join(names[:SHOWN])}",
            {"queues": list(names[:SHOWN]), "number": len(names)},
        )


@check("leases", "no lease has lapsed", Need.TABLES, of_writers=True, leases_lapsed=Level.ERROR)
def lapsed_leases(using: str) -> Iterator[Finding]:
    """Expired leases that nobody has reaped."""
    lapsed = Job.objects.using(using).filter(status=Job.Status.PROCESSING, lock_until__lt=UtcNowPlus(-GRACE_SECONDS))
    rows = vendor(using).force_index(lapsed.order_by("lock_until"), "ix_lease")
    ids = list(rows.values_list("pk", flat=True)[: COUNT_MAX + 1])
    if ids:
        number = f"more than {COUNT_MAX}" if len(ids) > COUNT_MAX else str(len(ids))
        yield report(
            "leases_lapsed",
            f"Nobody has ended the leases that lapsed more than {GRACE_SECONDS:.0f} s ago: {number}, such as that of "
            f"job {ids[0]}. Until somebody does, their jobs count as running and do not run again.",
            "Run: python manage.py reap_leases. Then start a worker without --no-reaper, or run reap_leases by cron. "
            "See docs/runbook/leases-run-out.md.",
            {"jobs": list(ids[:SHOWN]), "number": min(len(ids), COUNT_MAX), "capped": len(ids) > COUNT_MAX},
        )
