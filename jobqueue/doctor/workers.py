"""The workers: whether any runs, which are silent, which versions they have, and queues that nobody serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.doctor.finding import Finding, Level
from jobqueue.explain.workers import WORKERS_MAX
from jobqueue.maintenance.worker_rows import alive
from jobqueue.models import Worker
from jobqueue.transitions.claiming.candidates import waiting_names
from jobqueue.worker.shared.queue_choice import stored_selection

#: names that a finding has
SHOWN = 10


def workers(using: str) -> Iterator[Finding]:
    """no_worker, worker_silent."""
    seconds = load().worker_silent_seconds
    running = {*alive(seconds, using=using).values_list("name", flat=True)[:WORKERS_MAX]}
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True).order_by("heartbeat_at")
    silent = [row for row in rows.values_list("name", "host", "heartbeat_at")[:WORKERS_MAX] if row[0] not in running]
    if not running:
        waiting = sorted(waiting_names(using=using))
        yield Finding(
            Level.ERROR if waiting else Level.WARNING,
            "no_worker",
            "No worker is running, so no job starts." + (f" Jobs wait in {_names(waiting)}." if waiting else ""),
            "Start one: python manage.py runworker",
            {"queues": list(waiting[:SHOWN]), "silent": len(silent)},
        )
    if silent:
        yield _silent(silent, read_now(using))


def _silent(silent: list[tuple[str, str, datetime]], now: datetime) -> Finding:
    name, host, seen_at = silent[0]
    others = f", and {len(silent) - 1} others for less" if len(silent) > 1 else ""
    return Finding(
        Level.WARNING,
        "worker_silent",
        f"Worker {name} on {host} has sent no heartbeat for {(now - seen_at).total_seconds():.0f} s, and has not "
        f"stopped{others}: it was killed, hangs, or has lost the database.",
        "Look at their hosts and logs. Other workers end their leases; reap_leases marks their rows. See "
        "docs/runbook/leases-run-out.md.",
        {"workers": [{"name": one[0], "host": one[1], "heartbeat_at": one[2].isoformat()} for one in silent[:SHOWN]]},
    )


def worker_versions(using: str) -> Iterator[Finding]:
    """worker_versions."""
    rows = alive(load().worker_silent_seconds, using=using).values_list("version", flat=True)
    if len(found := Counter(rows[:WORKERS_MAX])) > 1:
        text = ", ".join(f"{version} ({number})" for version, number in sorted(found.items()))
        yield Finding(
            Level.WARNING,
            "worker_versions",
            f"The workers run several versions of jobqueue: {text}. Limits and options that the older one does not "
            "know bind only some of them.",
            "If no deploy is under way, restart the workers that have the old one.",
            {"versions": dict(found)},
        )


def unserved_queues(using: str) -> Iterator[Finding]:
    """queue_unserved, where workers run."""
    rows = alive(load().worker_silent_seconds, using=using).values_list("queues", flat=True)
    choices = [stored_selection(queues) for queues in {*rows[:WORKERS_MAX]}]
    if not choices:
        return
    names = [name for name in waiting_names(using=using) if not any(choice.serves(name) for choice in choices)]
    if names := sorted(names):
        yield Finding(
            Level.ERROR,
            "queue_unserved",
            f"Jobs wait in queues that no worker serves: {_names(names)}.",
            f"Start a worker for them: python manage.py runworker --queues={','.join(names[:SHOWN])}",
            {"queues": list(names[:SHOWN]), "number": len(names)},
        )


def _names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
