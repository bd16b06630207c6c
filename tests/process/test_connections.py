"""A worker holds no more sessions than it says, as the server counts them."""

import os
import signal
from datetime import timedelta

import pytest
from django.utils import timezone

from jobqueue.models import Gate, Job, Worker
from tests.app import tasks
from tests.factories import enqueue_times
from tests.marks import committed
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions")]
PROCESSES, THREADS = 2, 3
BUDGET = 6 + PROCESSES * (5 + THREADS)
# Of each process one is for coroutines, one for jobs with ack_each, one for figures about locks: not for these jobs.
# Only PostgreSQL is listened to, and the monitor has one for dead children while there are any, and one for gates with
# a time.
USED = BUDGET - 3 * PROCESSES - (VENDOR != "postgres") - 2
# Kept from job to job: the server may count a session that was closed just now.
KEPT = "?conn_max_age=600"
OPTIONS = ("--processes", PROCESSES, "--concurrency", THREADS, "--max-connections", BUDGET)


def done():
    return Job.objects.filter(status=Job.Status.DONE).count()


def watch(account, until):
    """How many sessions there were at most until the condition came true."""
    most = 0

    def look():
        nonlocal most
        found = account.sessions()
        if found > USED:
            # The server counts a session of a process that was killed until it looks at it again. Others stay.
            found = wait_until(lambda: (left := account.sessions()) <= USED and left, what=f"no more than {USED}")
        most = max(most, found)
        return until()

    wait_until(look)
    return most


def fill(evidence, gate):
    """Let every thread run a job at the same time, on its connection, and every child write an end."""
    before = len(evidence.read("start"))
    enqueue_times(PROCESSES * THREADS, tasks.holds_a_connection, str(gate))
    wait_until(lambda: len(evidence.read("start")) == before + PROCESSES * THREADS, what="a job in each thread")
    gate.touch()


def test_jobs_that_all_use_the_database_fill_the_budget_and_stay_within(account, worker, evidence, tmp_path):
    # The server refuses one more: nobody could exceed it unseen. MySQL counts a session that is reset after a job, as
    # each job thread does, a second time for a moment; watch() sees what stays.
    account.set_limit(USED + (PROCESSES * THREADS if VENDOR == "mysql" else 0))
    group = worker(*OPTIONS, **account.environment(options=KEPT))
    fill(evidence, tmp_path / "gate")
    enqueue_times(120, tasks.uses_the_database, 0.05)
    most = watch(account, lambda: done() == 120 + PROCESSES * THREADS)
    # They are kept.
    assert max(most, watch(account, lambda: account.sessions() == USED)) == USED
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert "away" not in group.text()
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_gates_that_open_at_a_time_need_one_session_more_and_stay_within(account, worker, evidence, tmp_path):
    Gate.objects.create(subject=1, wait_reason="rate no.such.task", opens_at=timezone.now() + timedelta(hours=1))
    group = worker(*OPTIONS, **account.environment(options=KEPT))
    fill(evidence, tmp_path / "gate")
    wait_until(lambda: account.sessions() == USED + 1, what=f"{USED + 1} sessions")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert "away" not in group.text()


def test_ends_that_are_committed_one_by_one_are_written_on_two_connections(account, worker):
    enqueue_times(400, tasks.work_acked_each, 0)
    account.set_limit(USED)
    group = worker(*OPTIONS, **account.environment(options=KEPT))
    wait_until(lambda: done() == 400)
    # The monitor has three; each child one that claims, one that writes, and a helper thread if it had to hurry.
    least = 3 + PROCESSES * 2 + (VENDOR == "postgres")
    # One that has just ended may still be counted.
    wait_until(lambda: least < account.sessions() <= least + PROCESSES, what=f"{least + 1} to {least + PROCESSES}")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert "away" not in group.text()


def test_a_child_that_replaces_another_opens_no_more(account, worker, evidence, tmp_path):
    enqueue_times(400, tasks.uses_the_database.using(max_attempts=25), 0.05)
    group = worker("--recycle-jobs", 40, *OPTIONS, **account.environment(options=KEPT))
    most = 0
    for round in range(1, 4):
        most = max(most, watch(account, lambda: done() >= 80 * round))  # noqa: B023
        os.kill(Worker.objects.filter(stopped_at=None).last().pid, signal.SIGKILL)
    most = max(most, watch(account, lambda: done() == 400))
    fill(evidence, tmp_path / "gate")
    most = max(most, watch(account, lambda: account.sessions() == USED))
    assert most == USED
    assert Worker.objects.filter(stop_reason__contains="number of jobs").exists()
    assert Worker.objects.filter(stop_reason__contains="SIGKILL").exists()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_budget_that_cannot_hold_is_refused_at_the_start(worker):
    group = worker("--processes", 2, "--concurrency", 4, "--max-connections", 15)
    assert group.wait() == 2
    group.prints("may open 24 connections")
    assert "Traceback" not in group.text()
