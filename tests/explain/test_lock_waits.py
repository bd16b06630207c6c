"""row_lock for locks of business tables, of whole tables, and of transactions that somebody has forgotten."""

import threading
from contextlib import contextmanager
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from jobqueue.admin.page import limited
from jobqueue.doctor import Level, examine
from jobqueue.explain import explain_backlog, explain_job, explain_queue, row_locks
from jobqueue.models import Job
from jobqueue.transitions import claim
from tests.admin.helpers import root
from tests.app.models import Ticket
from tests.blocking import let_lists_expire
from tests.explain.broken import locked
from tests.explain.helpers import checked, codes, first, named
from tests.factories import make_job, make_jobs
from tests.marks import committed
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")]


@contextmanager
def another_session(*statements):
    """A session that has run these and keeps its transaction open; its number."""
    holder = connection.copy()
    try:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
            (number,) = cursor.fetchone()
            for statement in statements:
                cursor.execute(statement)
        yield number
    finally:
        holder.rollback()
        holder.close()


@contextmanager
def waiting(wait):
    """A function that starts a thread, which calls `wait` and ends after the block."""

    def run():
        try:
            wait()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    yield thread.start
    if thread.ident:
        thread.join()


def lock_ticket():
    with transaction.atomic():
        list(Ticket.objects.select_for_update().all())


def told_of(number, explain):
    """What `explain` says when it names the session as a cause."""
    found = []

    def is_told():
        let_lists_expire()
        found[:] = checked(explain())
        return any(one.code == "row_lock" and one.evidence["blocking"] == number for one in found)

    wait_until(is_told, what=lambda: f"row_lock among {codes(found)}")
    return found


class TestALockOnABusinessTable:
    @pytest.fixture(autouse=True)
    def held(self, worker):
        """The only thread runs a job, another job is due, and a session waits for a row of a business table."""
        Ticket.objects.create(number="1")
        worker("w", concurrency=1)
        make_jobs(2)
        (self.lease,) = claim("q", 1, worker="w", lease_seconds=600)
        table = Ticket._meta.db_table
        with waiting(lock_ticket) as start, another_session(f"SELECT * FROM {table} FOR UPDATE") as self.number:
            start()
            yield

    def test_is_the_first_cause_of_the_backlog_and_nobody_is_told_to_start_more_workers(self):
        found = told_of(self.number, explain_backlog)
        one = first(found, "row_lock")
        assert one.evidence["locked"].partition(",")[0] == Ticket._meta.db_table
        assert one.evidence["waiting_jobs"] == 1
        assert "Start more workers" not in named(found, "workers_busy").next_step

    def test_is_the_first_cause_of_the_queue(self):
        found = told_of(self.number, lambda: explain_queue("q"))
        first(found, "row_lock")
        assert "Start more workers" not in named(found, "workers_busy").next_step

    def test_is_told_of_a_job_that_runs(self):
        assert "row_lock" in codes(told_of(self.number, lambda: explain_job(self.lease.job_id)))


class TestALockedTable:
    LOCK = "LOCK TABLE job_queue IN ACCESS EXCLUSIVE MODE" if VENDOR == "postgres" else "LOCK TABLES job_queue WRITE"

    def test_is_named_by_jobs_explain_and_jobs_locks(self):
        make_job()
        out, locks = StringIO(), StringIO()
        with waiting(Job.objects.first) as start, another_session(self.LOCK) as number:
            start()
            wait_until(self.is_told, what="a wait for the table")
            call_command("jobs", "explain", stdout=out)
            call_command("jobs", "locks", stdout=locks)
            findings = {one.id: one for one in examine()}
            assert "claim_plan" not in findings, "checks that read tables are left out"
        assert "Sessions wait for a lock" in out.getvalue()
        assert findings["table_locked"].level == Level.ERROR
        if VENDOR != "mariadb":
            assert str(number) in findings["table_locked"].text
            assert f"Connection {number} holds it (job_queue)" in out.getvalue()
            assert f"held by {number}" in locks.getvalue()

    @pytest.mark.parametrize("path", ["job/", "worker/", "queue/", "redrive/", "job/%d/change/", "redrives/"])
    def test_ends_a_page_of_the_admin_soon_with_the_cause(self, path, monkeypatch):
        monkeypatch.setattr(limited, "PAGE_SECONDS", 1.5)
        job_id, client = make_job(), root()
        address = f"/admin/jobqueue/{path}" % job_id if "%" in path else f"/admin/jobqueue/{path}"
        assert client.get(address).status_code in (200, 404)
        with another_session(self.LOCK) as number:
            response = client.get(address)
        assert response.status_code == 503 or "%" not in path
        if response.status_code == 503:
            page = response.content.decode()
            assert "Reading took longer than 1.5 s" in page
            assert VENDOR == "mariadb" or number

    @staticmethod
    def is_told():
        let_lists_expire()
        return row_locks.locked_tables("default") != []


class TestAForgottenTransaction:
    def test_is_the_cause_where_threads_are_free_and_claims_pass_over_its_rows(self, worker, monkeypatch):
        monkeypatch.setattr(row_locks, "FORGOTTEN_SECONDS", 0.0)
        worker("w")
        job_id = make_job()
        with locked(job_id) as number:
            for explain in (explain_backlog, lambda: explain_queue("q"), lambda: explain_job(job_id)):
                found = told_of(number, explain)
                assert "pass over" in first(found, "row_lock").text
                assert "Wait a few seconds" not in named(found, "workers_busy").next_step

    @pytest.mark.skipif(VENDOR == "mariadb", reason="MariaDB does not tell which rows are locked")
    def test_that_has_locked_no_job_is_no_cause(self, worker, monkeypatch):
        monkeypatch.setattr(row_locks, "FORGOTTEN_SECONDS", 0.0)
        Ticket.objects.create(number="1")
        worker("w")
        make_job()
        with another_session(f"SELECT * FROM {Ticket._meta.db_table} FOR UPDATE"):
            assert "row_lock" not in codes(checked(explain_backlog()))
