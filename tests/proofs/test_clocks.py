"""Servers in other zones, hosts with wrong clocks: due times, leases and reaping are those of the database's clock."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import connection

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job
from jobqueue.transitions import claim
from tests.app import tasks
from tests.factories import seconds_from_now, set_columns, state
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


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("offset", [-3600, 3600], ids=["host-an-hour-slow", "host-an-hour-fast"])
def test_due_times_leases_and_reaping_are_the_same_in_any_zone_and_with_a_wrong_host_clock(
    run_worker, zone, offset, figure
):
    """Servers at +09:00 and -08:00, host clock off by an hour: due times, leases and reaping unchanged."""
    with server_zone(zone):
        now, past, soon = (int(tasks.add.enqueue(n, 0).id) for n in range(3))
        set_columns(past, run_at=UtcNowPlus(-1800))
        set_columns(soon, run_at=UtcNowPlus(1800))
        enqueue("other", 1)
        enqueue("other", 2)
        lapsed, alive = claim("other", 2, worker="somebody", lease_seconds=600)
        set_columns(lapsed.job_id, lock_until=UtcNowPlus(-0.5))
        slow = int(tasks.patient.enqueue(5).id)
        worker = run_worker(
            "--queues", "default", "--lease", "3s", "--heartbeat", "0.5s", JOBQUEUE_TEST_CLOCK_OFFSET=offset
        )
        wait_for(lambda: state(now) == state(past) == "DONE" and state(lapsed.job_id) == "READY", 30, "what is due")
        wait_for(lambda: worker.lines("start"), 30, "the slow job")
        left = [seconds_from_now(Job.objects.get(pk=slow).lock_until) for _ in range(3)]
        wait_for(lambda: state(slow) == "DONE", 30, "the slow job's end, after more than its lease")
        assert worker.stop() == 0
        assert state(soon) == "READY"
        assert state(alive.job_id) == "PROCESSING"
        assert Job.objects.get(pk=slow).attempts == 0
        assert all(0 < seconds <= 3.1 for seconds in left)
        assert Job.objects.get(pk=lapsed.job_id).attempts == 1
    figure("zone of the server", zone)
    figure("host clock", f"{offset:+d} s")
    figure("seconds of lease left while it ran (lease 5 s, renewed every 1 s)", [round(s, 1) for s in left])
