"""Programs that claim jobs of a limited queue and are no workers of ours: the limit does not bind them."""

from __future__ import annotations

from collections.abc import Iterator

from jobqueue.db import vendor
from jobqueue.db.expressions import Unestimated
from jobqueue.doctor.finding import Finding, Level
from jobqueue.flow.overview import known_names
from jobqueue.gates.rules import rules
from jobqueue.gates.whole_queues import limits_of_queue
from jobqueue.models import Job, Worker

#: limited queues that are looked at, leases of each (for more, PostgreSQL may read and sort all jobs), and workers
#: whose names are known
QUEUES_MAX, LEASES_MAX, WORKERS_MAX = 1000, 1000, 100_000
#: claimers that are named, and jobs of each
SHOWN = 10


def foreign_claimers(using: str) -> Iterator[Finding]:
    """foreign_claimer, for each limited queue: an index seek, and up to LEASES_MAX rows."""
    known = rules(using)
    limited = [name for name in known_names(using=using) if not limits_of_queue(name, known).none]
    limited += sorted({queue for queue, _ in known.paused} - {*limited})
    for queue in limited[:QUEUES_MAX]:
        if found := _foreign(queue, using):
            yield _finding(queue, found)
    if len(limited) > QUEUES_MAX:
        yield Finding(
            Level.INFO,
            "not_checked",
            f"Of {len(limited)} queues that are limited or paused, only the first {QUEUES_MAX} by name were looked at.",
            "Nothing is needed if only workers claim from the others.",
            {"check": "claimers", "queues": len(limited), "looked_at": QUEUES_MAX},
        )


def _finding(queue: str, found: dict[str, list[int]]) -> Finding:
    names = sorted(found)
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return Finding(
        Level.WARNING,
        "foreign_claimer",
        f"Programs that are no workers hold jobs of queue {queue}, which is limited or paused: "
        f"{', '.join(names[:SHOWN])}{more}. Limits bind workers only, so more jobs of it may run than the limit "
        "allows.",
        "Let these programs look at job_flow before they claim, as docs/howto/plain-sql.md shows, or give them a queue "
        "of their own.",
        {"queue": queue, "claimers": {name: list(found[name][:SHOWN]) for name in names[:SHOWN]}},
    )


def _foreign(queue: str, using: str) -> dict[str, list[int]]:
    """The ids of the leases of each claimer that is no worker."""
    held: dict[str, list[int]] = {}
    rows = Job.objects.using(using).filter(queue=Unestimated(queue), status=Unestimated(Job.Status.PROCESSING))
    # In the order of the index, or PostgreSQL may read the whole table.
    rows = vendor(using).force_index(rows.order_by("gate", "priority", "run_at", "id"), "ix_pick")
    for job_id, name in rows.values_list("pk", "locked_by")[:LEASES_MAX]:
        held.setdefault(str(name), []).append(job_id)
    ours = _workers([*held], using) if held else set()
    commands = {name.rpartition("/")[0] for name in ours if "/" in name}
    return {name: ids for name, ids in held.items() if name not in ours and not _is_ours(name, commands)}


def _workers(names: list[str], using: str) -> set[str]:
    rows = Worker.objects.using(using)
    running = rows.filter(stopped_at__isnull=True).values_list("name", flat=True)[:WORKERS_MAX]
    return {*rows.filter(name__in=names).values_list("name", flat=True), *running}


def _is_ours(name: str, commands: set[str]) -> bool:
    """Whether it is a process for a job that runs alone: it has no row of its own."""
    return name.rpartition("/")[0] in commands or name.endswith(":alone")
