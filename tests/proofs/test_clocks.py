"""Servers in other zones, hosts with wrong clocks: due times, leases and reaping are those of the database's clock."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job
from jobqueue.transitions import claim
from tests.app import tasks
from tests.factories import now, seconds_from_now, set_columns, state
from tests.marks import committed
from tests.proofs.running import wait_for
from tests.settings import VENDOR

pytestmark = committed

ZONES = {
    "mysql": ["+09:00", "-08:00"],
    "mariadb": ["+09:00", "-08:00"],
    "postgres": ["Asia/Seoul", "America/Los_Angeles"],
}.get(VENDOR, ["the host's"])


@contextmanager
def server_zone(zone):
    """New sessions of the server start in `zone`."""

    def set_zone(value):
        with connection.cursor() as cursor:
            if VENDOR == "postgres":
                cursor.execute(f"ALTER ROLE CURRENT_USER SET timezone = '{value}'")
            elif VENDOR != "sqlite":
                cursor.execute("SET GLOBAL time_zone = %s", [value])
        connection.close()

    before = None
    if VENDOR in ("mysql", "mariadb"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@global.time_zone")
            before = cursor.fetchone()[0]
    set_zone(zone)
    try:
        yield
    finally:
        set_zone(before or "UTC")


def renewed(job_id, before):
    """The end of a job's lease, if that is later than `before`; None = whatever it is."""
    until = Job.objects.get(pk=job_id).lock_until
    return until if before is None or until > before else None


def now_plus(seconds):
    return now() + timedelta(seconds=seconds)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("offset", [-3600, 3600], ids=["host-an-hour-slow", "host-an-hour-fast"])
def test_due_times_leases_and_reaping_are_the_same_in_any_zone_and_with_a_wrong_host_clock(
    run_worker, zone, offset, tmp_path, figure
):
    """Servers at +09:00 and -08:00, host clock off by an hour: due times, leases and reaping unchanged."""
    with server_zone(zone):
        due, past, soon = (int(tasks.add.enqueue(n, 0).id) for n in range(3))
        set_columns(past, run_at=UtcNowPlus(-1800))
        set_columns(soon, run_at=UtcNowPlus(1800))
        enqueue("other", 1)
        enqueue("other", 2)
        lapsed, alive = claim("other", 2, worker="somebody", lease_seconds=600)
        set_columns(lapsed.job_id, lock_until=UtcNowPlus(-0.5))
        gate = tmp_path / "gate"
        slow = int(tasks.gated.enqueue(str(gate)).id)
        worker = run_worker(
            "--queues", "default", "--lease", "60s", "--heartbeat", "0.5s", JOBQUEUE_TEST_CLOCK_OFFSET=offset
        )
        wait_for(lambda: state(due) == state(past) == "DONE" and state(lapsed.job_id) == "READY", 30, "what is due")
        wait_for(lambda: worker.lines("start"), 30, "the slow job")
        left, until = [], None
        for _ in range(3):
            until = wait_for(lambda: renewed(slow, until), 30, "a renewal")  # noqa: B023  at once
            left.append(seconds_from_now(until))
        # As if nobody had renewed it for most of its time.
        set_columns(slow, lock_until=UtcNowPlus(20))
        left.append(seconds_from_now(wait_for(lambda: renewed(slow, now_plus(30)), 30, "another renewal")))
        gate.touch()
        wait_for(lambda: state(slow) == "DONE", 30, "the slow job's end")
        assert worker.stop() == 0
        assert state(soon) == "READY"
        assert state(alive.job_id) == "PROCESSING"
        assert Job.objects.get(pk=slow).attempts == 0
        assert all(0 < seconds <= 60 for seconds in left)
        assert Job.objects.get(pk=lapsed.job_id).attempts == 1
    figure("zone of the server", zone)
    figure("host clock", f"{offset:+d} s")
    figure("seconds of lease left while it ran (lease 60 s, renewed every 0.5 s)", [round(s, 1) for s in left])
