"""A row that is locked for long keeps nobody's lease from being renewed, and nobody's job from running."""

import os
import signal
from datetime import timedelta

import pytest
from django.db import connection

from jobqueue.models import Job, JobAttempt
from tests.app import tasks
from tests.factories import job, seconds_from_now
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.process.harness import kill_sessions
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")]


def sleeping():
    """Whether the server is at that statement."""
    source, column = {
        "mysql": ("performance_schema.threads", "processlist_info"),
        "mariadb": ("information_schema.processlist", "info"),
        "postgres": ("pg_stat_activity", "query"),
    }[VENDOR]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT COUNT(*) FROM {source} WHERE {column} LIKE %s",
            ["SELECT SLEEP(600%" if VENDOR != "postgres" else "SELECT pg_sleep(600%"],
        )
        return cursor.fetchone()[0]


def started(evidence, count):
    wait_until(lambda: len(evidence.read("start")) == count, what=f"{count} starts")


def test_a_job_inside_finish_for_longer_than_its_lease_costs_no_neighbour_its_own(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    inside = tasks.finishes_when.enqueue(str(gate))
    neighbour = tasks.gated.using(queue_name="long").enqueue(str(gate))
    # Only the first one's lease is to run out, and not before its row is locked.
    worker("--lease", f"{patient(1.2)}s", JOBQUEUE_TEST_LEASES='{"long": 600}')
    started(evidence, 2)
    wait_until(lambda: seconds_from_now(job(inside.id).lock_until) < 0, what="the end of the lease that nobody renews")
    begin = job(neighbour.id).lock_until
    wait_until(lambda: job(neighbour.id).lock_until > begin + timedelta(seconds=3), what="renewals")
    gate.touch()
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="both ends")
    assert len(evidence.read("start")) == 2
    assert not JobAttempt.objects.exists()
    assert {job(one.id).attempts for one in (inside, neighbour)} == {0}


def test_a_statement_of_a_dead_child_that_goes_on_keeps_nobody_elses_job_from_running_again(worker, evidence, tmp_path):
    tasks.finishes_in_the_server.enqueue(600)
    neighbour = tasks.gated.enqueue(str(tmp_path / "gate"))
    # Shorter than the 5 s after which MySQL looks whether somebody still wants to hear of the end of its sleep.
    worker("--lease", "10m", "--heartbeat", "1m", JOBQUEUE_TEST_UNLOCKED_SECONDS="2")
    try:
        started(evidence, 2)
        wait_until(sleeping, what="the statement")
        os.kill(int(evidence.read("start")[0][1]), signal.SIGKILL)
        # On a busy machine the server may have looked, and the other one runs again too.
        wait_until(
            lambda: [line[2] for line in evidence.read("start")[2:]].count(neighbour.id), what="its second start"
        )
        (tmp_path / "gate").touch()
        wait_until(lambda: job(neighbour.id).status == Job.Status.DONE, what="its end")
    finally:
        # Or the tables could not be emptied.
        kill_sessions()
