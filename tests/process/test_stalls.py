"""A real worker whose claims wait for a lock on the table says so, once, and says when it is over."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection

from jobqueue.flow import set_limit
from jobqueue.gates.limits import whole_queue_subject
from jobqueue.models import Job, Worker
from tests.app import tasks
from tests.factories import job, now
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no lock on one table")]


@contextmanager
def locked_table(postgres="SHARE", others="READ"):
    """Another connection lets everybody read the jobs, and nobody write them; its number."""
    holder = connection.copy()
    try:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
            (number,) = cursor.fetchone()
            lock = (
                f"LOCK TABLE job_queue IN {postgres} MODE"
                if VENDOR == "postgres"
                else f"LOCK TABLES job_queue {others}"
            )
            cursor.execute(lock)
        yield number
    finally:
        # Ends the lock on every server.
        holder.close()


def told(group):
    return [line for line in group.text().splitlines() if "with free threads has claimed nothing" in line]


def test_claims_that_wait_for_a_lock_of_the_table_are_told_once_and_their_end_too(worker):
    first = tasks.add.enqueue(1, 2).id
    group = worker(JOBQUEUE_TEST_SILENT_SECONDS="4")
    wait_until(lambda: job(first).status == Job.Status.DONE, what="the first job")
    late = tasks.add.using(run_after=now() + timedelta(seconds=3)).enqueue(3, 4).id
    with locked_table():
        wait_until(lambda: told(group), what="the warning")
        if VENDOR == "postgres":
            # On the others the thread that writes the rows of workers also reaps, and waits for the lock.
            wait_until(lambda: (Worker.objects.get().troubles or {}).get("stalled"), what="the row of the worker")
            assert Worker.objects.get().troubles["stalled"]["job_id"] == int(late)
            assert "(row_lock)" in told(group)[0]
    wait_until(lambda: job(late).status == Job.Status.DONE, what="the job")
    group.prints("the jobs that nobody claimed are gone")
    wait_until(lambda: Worker.objects.get().troubles is None, what="an empty column")
    (line,) = told(group)
    assert f"job {late} of queue default has been due for" in line


@finding("O-H2")
def test_a_table_that_nobody_can_read_is_told_with_the_holder(worker):
    first = tasks.add.enqueue(1, 2).id
    group = worker(JOBQUEUE_TEST_SILENT_SECONDS="4")
    wait_until(lambda: job(first).status == Job.Status.DONE, what="the first job")
    with locked_table("ACCESS EXCLUSIVE", "WRITE") as number:
        wait_until(lambda: told(group), what="the warning")
    (line,) = told(group)
    assert "jobs cannot be read" in line
    assert VENDOR == "mariadb" or str(number) in line
    after = tasks.add.enqueue(3, 4).id
    wait_until(lambda: job(after).status == Job.Status.DONE, what="a job after the lock")


@finding("O-M6")
def test_claims_that_pass_over_the_locked_gate_of_their_queue_name_who_has_locked_it(worker):
    set_limit("default", concurrency=5)
    first = tasks.add.enqueue(1, 2).id
    group = worker(JOBQUEUE_TEST_SILENT_SECONDS="4")
    wait_until(lambda: job(first).status == Job.Status.DONE, what="the first job")
    holder = connection.copy()
    try:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
            (number,) = cursor.fetchone()
            subject = whole_queue_subject("default").number
            cursor.execute("SELECT * FROM job_gate WHERE subject = %s FOR UPDATE", [subject])
        late = tasks.add.enqueue(3, 4).id
        wait_until(lambda: told(group), what="the warning")
    finally:
        holder.close()
    wait_until(lambda: job(late).status == Job.Status.DONE, what="the job")
    (line,) = told(group)
    assert "(row_lock)" in line
    assert "(job_gate, queue default)" in line
    assert str(number) in line


def test_a_worker_that_works_says_nothing(worker):
    ids = [tasks.work.enqueue(0.01).id for _ in range(50)]
    group = worker("--drain")
    assert group.wait() == 0
    assert {job(one).status for one in ids} == {Job.Status.DONE}
    assert told(group) == []
