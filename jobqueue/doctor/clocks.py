"""The clocks of this host and of the database server, and the zone of its sessions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.db import Error

from jobqueue.db.clock import SKEW_SECONDS, Selected, UtcNow, compare_clocks
from jobqueue.doctor.finding import Finding, Level
from jobqueue.explain.zones import is_in_zone, zone_offset
from jobqueue.models import Job
from jobqueue.ordering import SCHEDULED
from jobqueue.payload import JSON

#: jobs that are looked at for due times in the zone of a session, and those that the evidence names
NEWEST_MAX, SHOWN = 500, 10


def clock_skew(using: str) -> Iterator[Finding]:
    """clock_skew. The time of the round trip does not count as skew."""
    found = compare_clocks(using)
    ahead = found.ahead_seconds
    if abs(ahead) > SKEW_SECONDS:
        which = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            Level.WARNING,
            "clock_skew",
            f"The clock of this host is {abs(ahead):.1f} s {which} that of the database server. Leases, due times and "
            "schedules go by the server's clock and stay right. What this host computes from its own clock is wrong by "
            "that much: run_after and expires of a task, and times in logs.",
            "Run NTP on both hosts; timedatectl shows whether it works.",
            {"host_ahead_seconds": round(ahead, 3), "host": found.host.isoformat(), "server": found.server.isoformat()},
        )


def session_zone(using: str) -> Iterator[Finding]:
    """session_zone: a warning if jobs wait whose due time may have been written in that zone."""
    offset = zone_offset(using)
    if not offset:
        return
    seconds = offset.total_seconds()
    text = (
        f"NOW() of a session is {seconds / 3600:+g} h from UTC. The product does not use it. Plain SQL that writes "
        "NOW() or CURRENT_TIMESTAMP into run_at or lock_until would be wrong by that much."
    )
    fix = "Use UTC_TIMESTAMP(6) in statements of your own, as docs/reference/sql.md does."
    evidence: dict[str, JSON] = {"zone_seconds": seconds}
    jobs = _in_zone(offset, using)
    if jobs:
        text += (
            f" It may have done so: of the newest {NEWEST_MAX:,} jobs, {len(jobs)} wait whose run_at is that far "
            f"behind their enqueue, such as job {jobs[0]}."
        )
        fix += " Let the jobs run that should have been due at once: jobs retry with their ids."
        evidence["jobs"] = list(jobs[:SHOWN])
    yield Finding(Level.WARNING if jobs else Level.INFO, "session_zone", text, fix, evidence)


def _in_zone(offset: timedelta, using: str) -> list[int]:
    """The newest jobs first. Reads NEWEST_MAX rows by their key."""
    newest = Job.objects.using(using).order_by("-pk").annotate(now=Selected(UtcNow()))
    columns = ("pk", "status", "attempts", "wait_reason", "run_at", "created_at", "now")
    try:
        rows = list(newest.values_list(*columns)[:NEWEST_MAX])
    except Error:
        # Another check tells that the table is not there.
        return []
    return [
        job_id
        for job_id, status, attempts, waits, run_at, created_at, now in rows
        if status == Job.Status.READY and not attempts and waits in (None, SCHEDULED) and run_at > now
        if is_in_zone(run_at, created_at, now, offset)
    ]
