"""row_lock for locks of business tables, of whole tables, and of transactions that somebody has forgotten."""

import threading
from contextlib import ExitStack, contextmanager
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from jobqueue.doctor import Level, examine
from jobqueue.explain import explain_backlog, explain_job, explain_queue, row_locks
from jobqueue.flow import set_limit
from jobqueue.gates.limits import rate_subject, slot_subject, whole_queue_subject
from jobqueue.models import BreakerState, Gate, Job, Worker
from jobqueue.transitions import claim
from tests.admin.helpers import root
from tests.app.models import Ticket
from tests.blocking import let_lists_expire
from tests.explain.broken import another_session, locked
from tests.explain.helpers import checked, codes, first, named
from tests.factories import make_job, make_jobs, now
from tests.gates import jobs
from tests.gates.helpers import add, taken
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")]


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
        # However long that takes: a silent worker would be another cause.
        Worker.objects.update(heartbeat_at=now())
        found[:] = checked(explain())
        return any(one.code == "row_lock" and one.evidence["blocking"] == number for one in found)

    wait_until(is_told, what=lambda: f"row_lock among {codes(found)}")
    return found


@finding("M-F1")
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


@finding("O-H2")
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
        monkeypatch.setattr("jobqueue.admin.page.limited.PAGE_SECONDS", 1.5)
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
        return any(one.evidence["waiting"] for one in row_locks.row_locks("default"))


class TestAForgottenTransaction:
    @finding("O-M6")
    def test_is_the_cause_where_threads_are_free_and_claims_pass_over_its_rows(self, worker, monkeypatch):
        monkeypatch.setattr(row_locks, "FORGOTTEN_SECONDS", 0.0, raising=False)
        worker("w")
        job_id = make_job()
        with locked(job_id) as number:
            for explain in (explain_backlog, lambda: explain_queue("q"), lambda: explain_job(job_id)):
                found = told_of(number, explain)
                assert "pass over" in first(found, "row_lock").text
                assert "Wait a few seconds" not in named(found, "workers_busy").next_step

    @finding("O-M6")
    def test_is_found_behind_older_transactions_of_others_that_hold_no_lock(self, worker, monkeypatch):
        monkeypatch.setattr(row_locks, "FORGOTTEN_SECONDS", 0.0, raising=False)
        worker("w")
        job_id = make_job()
        with ExitStack() as others:
            for _ in range(row_locks.FORGOTTEN_MAX + 1):
                others.enter_context(another_session(f"SELECT * FROM {Ticket._meta.db_table}"))
            with locked(job_id) as number:
                told_of(number, explain_backlog)

    @pytest.mark.skipif(VENDOR == "mariadb", reason="MariaDB does not tell which rows are locked")
    def test_that_has_locked_no_job_is_no_cause(self, worker, monkeypatch):
        monkeypatch.setattr(row_locks, "FORGOTTEN_SECONDS", 0.0, raising=False)
        Ticket.objects.create(number="1")
        worker("w")
        make_job()
        with another_session(f"SELECT * FROM {Ticket._meta.db_table} FOR UPDATE"):
            assert "row_lock" not in codes(checked(explain_backlog()))


class TestALockOnAGate:
    """Claims pass over gates that others keep locked, so nobody waits, and due jobs do not start."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch, worker):
        monkeypatch.setattr(row_locks, "WAIT_SECONDS", 0.0)
        worker("w")

    @finding("O-M6")
    def test_of_a_limited_queue_is_the_first_cause_and_names_its_holder(self):
        set_limit("q", concurrency=5)
        job_id = make_job()
        make_gate("q")
        number = whole_queue_subject("q").number
        with locked_row("job_gate", f"subject = {number}") as session:
            for explain in (explain_backlog, lambda: explain_queue("q"), lambda: explain_job(job_id)):
                one = first(told_of(session, explain), "row_lock")
                assert one.evidence["locked"] == "job_gate, queue q"
                assert "Nothing holds back" not in one.text
                assert str(session) in one.next_step
            assert "workers_busy" not in codes(checked(explain_queue("q")))
        assert "row_lock" not in codes(checked(explain_queue("q")))

    @finding("O-M6")
    def test_of_a_rate_is_the_cause_of_jobs_before_and_behind_their_gate(self, limited):
        made = limited(rate_limit="1000/s")
        first_id, second_id = add(2, made)
        assert taken(1) == [first_id]
        with locked_row("job_gate", f"subject = {rate_subject('q', jobs.WORK).number}") as session:
            assert first(told_of(session, lambda: explain_job(second_id)), "row_lock").evidence["task"] == jobs.WORK
            assert taken(1) == []
            found = told_of(session, lambda: explain_job(second_id))
            assert first(found, "row_lock").evidence["locked"] == f"job_gate, rate {jobs.WORK}"
            assert "row_lock" in codes(told_of(session, explain_backlog))

    @finding("O-M6")
    def test_of_slots_is_the_cause(self, limited):
        made = limited(concurrency_limit=5)
        first_id, second_id = add(2, made)
        assert taken(1) == [first_id]
        with locked_row("job_gate_slot", f"subject = {slot_subject('q', jobs.WORK).number}") as session:
            assert first(told_of(session, lambda: explain_job(second_id)), "row_lock").evidence["blocking"] == session

    def test_of_slots_that_are_all_taken_comes_after_that(self, limited):
        made = limited(concurrency_limit=1)
        first_id, second_id = add(2, made)
        assert taken(1) == [first_id]
        with locked_row("job_gate_slot", f"subject = {slot_subject('q', jobs.WORK).number}") as session:
            first(told_of(session, lambda: explain_job(second_id)), "slot")

    @finding("O-M6")
    def test_of_a_breaker_is_the_cause_of_jobs_of_which_one_may_be_its_probe(self, limited):
        made = limited(dependency="stripe")
        (job_id,) = add(1, made)
        BreakerState.objects.create(dependency="stripe", state="open", since=now(), probe_at=now(), turn=1)
        with locked_row("job_breaker", "dependency = 'stripe'") as session:
            found = told_of(session, lambda: explain_job(job_id))
            assert first(found, "row_lock").evidence["locked"] == "job_breaker, breaker stripe"
            assert "breaker" in codes(found)

    def test_of_another_queue_is_no_cause(self):
        set_limit("q", concurrency=5)
        set_limit("other", concurrency=5)
        make_job()
        for queue in ("q", "other"):
            make_gate(queue)
        with locked_row("job_gate", f"subject = {whole_queue_subject('other').number}"):
            let_lists_expire()
            assert "row_lock" not in codes(checked(explain_queue("q")))

    @finding("O-M6")
    @pytest.mark.skipif(VENDOR != "mariadb", reason="the others say who it is")
    def test_that_one_of_two_sessions_may_hold_names_both(self):
        set_limit("q", concurrency=5)
        make_job()
        make_gate("q")
        Ticket.objects.create(number="1")
        with (
            locked_row("job_gate", f"subject = {whole_queue_subject('q').number}") as one,
            another_session(f"SELECT * FROM {Ticket._meta.db_table} FOR UPDATE") as two,
        ):
            wait_until(lambda: {one, two} <= self.sessions(), what="both sessions")

    @staticmethod
    def sessions():
        let_lists_expire()
        found = checked(explain_queue("q"))
        return {number for one in found if one.code == "row_lock" for number in one.evidence["sessions"]}


def make_gate(queue):
    number, wait_reason = whole_queue_subject(queue)
    Gate.objects.create(subject=number, wait_reason=wait_reason)


@contextmanager
def locked_row(table, where):
    """Another session has locked these rows; its number."""
    with another_session(f"SELECT * FROM {table} WHERE {where} FOR UPDATE") as number:
        yield number
