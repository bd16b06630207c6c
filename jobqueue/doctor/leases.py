"""Leases that have lapsed and were not ended, and leases that are too short."""

from __future__ import annotations

from collections.abc import Iterator

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.doctor.finding import Finding, Level
from jobqueue.models import Job

#: workers reap about once a second; a pass may take a few
GRACE_SECONDS = 10.0
COUNT_MAX, SHOWN = 1000, 10
#: a shorter lease lapses when a host is busy, or the database restarts
LEASE_SECONDS_MIN = 10.0


def lapsed_leases(using: str) -> Iterator[Finding]:
    """Check leases_lapsed: expired leases that nobody has reaped."""
    lapsed = Job.objects.using(using).filter(status=Job.Status.PROCESSING, lock_until__lt=UtcNowPlus(-GRACE_SECONDS))
    rows = vendor(using).force_index(lapsed.order_by("lock_until"), "ix_lease")
    ids = list(rows.values_list("pk", flat=True)[: COUNT_MAX + 1])
    if ids:
        number = f"more than {COUNT_MAX}" if len(ids) > COUNT_MAX else str(len(ids))
        yield Finding(
            Level.ERROR,
            "leases_lapsed",
            f"Nobody has ended the leases that lapsed more than {GRACE_SECONDS:.0f} s ago: {number}, such as that of "
            f"job {ids[0]}. Until somebody does, their jobs count as running and do not run again.",
            "Run: python manage.py reap_leases. Then start a worker without --no-reaper, or run reap_leases by cron. "
            "See docs/runbook/leases-run-out.md.",
            {"jobs": list(ids[:SHOWN]), "number": min(len(ids), COUNT_MAX), "capped": len(ids) > COUNT_MAX},
        )


def lease_length(using: str) -> Iterator[Finding]:
    """lease_short. E003 is about a heartbeat that does not fit into it."""
    found = load()
    if found.lease_seconds < LEASE_SECONDS_MIN:
        yield Finding(
            Level.WARNING,
            "lease_short",
            f"LEASE_SECONDS is {found.lease_seconds:g} s, with a heartbeat every {found.renew_seconds:g} s. If a "
            "host is busy for that long, or the database restarts, leases run out and their jobs run a second time.",
            f"Set it to {LEASE_SECONDS_MIN:g} s or more. A lease need not be as long as a job, because it is renewed.",
            {"lease_seconds": found.lease_seconds, "heartbeat_seconds": found.renew_seconds},
        )
