"""The clocks of this host and of the database server, and the zone of its sessions."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.clock import SKEW_SECONDS, compare_clocks
from jobqueue.doctor.finding import Finding, Level


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
    """session_zone."""
    seconds = vendor(using).set_up.zone_seconds(connections[using])
    if seconds:
        yield Finding(
            Level.INFO,
            "session_zone",
            f"NOW() of a session is {seconds / 3600:+g} h from UTC. The product does not use it. Plain SQL that writes "
            "NOW() or CURRENT_TIMESTAMP into run_at or lock_until would be wrong by that much.",
            "Use UTC_TIMESTAMP(6) in statements of your own, as docs/reference/sql.md does.",
            {"zone_seconds": seconds},
        )
