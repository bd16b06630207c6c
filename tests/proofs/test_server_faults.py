"""The database server is restarted and killed while workers claim, ack, renew and reap."""

from __future__ import annotations

import random
import time

import pytest
from django.db import OperationalError, connection, connections

from jobqueue.models import Job
from tests.app import tasks
from tests.marks import committed
from tests.proofs import audit
from tests.proofs.running import unended, wait_for
from tests.proofs.test_kills import fill
from tests.servers import control
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server and no sessions"),
]

NO_SUCH_THREAD = 1094
OPTIONS = ("--processes", "2", "--concurrency", "4", "--lease", "5s", "--heartbeat", "1s")


@pytest.fixture(autouse=True)
def audited():
    audit.start()
    yield
    audit.stop()


def left():
    return Job.objects.exclude(status__in=(2, 3, 4)).count()


def done():
    return Job.objects.filter(status=Job.Status.DONE).count()


def finish(worker, total):
    wait_for(lambda: not left(), 120, "the end of all jobs")
    assert worker.stop() == 0
    assert audit.violations() == []
    assert done() == total


def test_a_server_restart_and_a_server_crash_in_the_middle_of_the_work_lose_nothing(run_worker, full, figure):
    """Server restarted, then killed, in the middle of the work: workers come back by themselves, nothing lost."""
    server = control.load().get(VENDOR)
    if server is None or not server.controllable:
        pytest.skip("the server was given by its URL: not ours to stop")
    total = 4_000 if full else 1_000
    fill(total, 0.05)
    worker = run_worker(*OPTIONS)
    wait_for(lambda: done() > total // 10, 30, "the first tenth")
    connections.close_all()
    server.restart()
    wait_for(lambda: done() > total // 3, 60, "a third")
    connections.close_all()
    server.kill()
    server.start()
    finish(worker, total)
    figure("jobs", total)
    figure("attempts charged", sum(Job.objects.values_list("attempts", flat=True)))


@pytest.mark.parametrize("task", [tasks.work, tasks.work_acked_each], ids=["acked together", "acked one by one"])
def test_sessions_killed_again_and_again_lose_nothing_and_charge_nobody(run_worker, full, figure, task):
    """All sessions of the workers killed several times a second, whatever they are doing: counted, nothing lost."""
    total = 4_000 if full else 700
    fill(total, 0.05, task)
    worker = run_worker(*OPTIONS)
    random.seed(1)
    kills = 0
    while seen := left():
        for _ in range(5):
            assert worker.process.poll() is None, worker.output()[-2000:]
            time.sleep(random.uniform(0.1, 0.4))
            kills += kill_the_others()
        # Where that is too short to connect again and get something done, the kills would go on for ever.
        wait_for(lambda: left() < seen or not seen, 60, lambda: unended([worker]))
    finish(worker, total)
    figure("jobs", total)
    figure("sessions killed", kills)
    figure("attempts charged", sum(Job.objects.values_list("attempts", flat=True)))
    assert kills > 5


def kill_the_others():
    """End every session of this database but our own; how many."""
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        if VENDOR == "postgres":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                [name],
            )
            return len(cursor.fetchall())
        cursor.execute("SELECT CONNECTION_ID()")
        ((own,),) = cursor.fetchall()
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [name])
        victims = [row[0] for row in cursor.fetchall() if row[0] not in (own, None)]
        return sum(killed(cursor, victim) for victim in victims)


def killed(cursor, session):
    """End one session; False if it has gone by itself meanwhile."""
    try:
        cursor.execute("KILL %s", [session])
    except OperationalError as error:
        if error.args[0] != NO_SUCH_THREAD:
            raise
        return False
    return True
