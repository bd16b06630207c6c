"""monitor_dead, read_only and row_lock, each provoked for real; and none of them where all is well."""

import sys
import threading
import traceback
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection
from django.test import override_settings

from jobqueue import enqueue
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.doctor import Level, examine
from jobqueue.exceptions import DatabaseBusy, JobQueueError
from jobqueue.explain import explain_backlog, explain_job, row_locks
from jobqueue.lockstats.report import read_server
from jobqueue.maintenance.worker_rows import retire_silent
from jobqueue.models import Job, Worker
from jobqueue.transitions import ack, reap
from tests.blocking import let_lists_expire
from tests.explain.broken import another_session, locked, refusing_writes
from tests.explain.helpers import checked, codes, first, of_job, of_queue
from tests.factories import claim_one, expire, make_job, now, set_columns
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.settings import VENDOR

MINUTE = timedelta(minutes=1)


@committed
class TestADatabaseThatRefusesWrites:
    def test_is_the_first_reason_of_jobs_queues_and_the_backlog(self, worker):
        worker("w")
        running, due = make_job(), None
        claim_one()
        due = make_job()
        with refusing_writes():
            with pytest.raises((DatabaseError, JobQueueError)):
                enqueue("q", 1)
            for found in (of_job(due), of_job(running), of_queue(), checked(explain_backlog())):
                one = first(found, "read_only")
                assert one.evidence["setting"] in one.text
            assert checked(explain_backlog())[0].evidence["waiting_jobs"] == 1
            assert codes(of_queue()) == ["read_only", "running"], "no worker starts a job"
        for found in (of_job(due), of_job(running), of_queue(), checked(explain_backlog())):
            assert "read_only" not in codes(found)

    @finding("O-M7")
    def test_is_the_only_advice_of_the_doctor(self):
        make_job()
        expire(claim_one().job_id)
        with refusing_writes():
            findings = {one.id: one for one in examine()}
        assert findings["read_only"].level == Level.ERROR
        assert not {"no_worker", "leases_lapsed", "alarms_stale"} & findings.keys(), "nobody could follow these"

    def test_is_told_without_any_job(self):
        with refusing_writes():
            assert codes(checked(explain_backlog())) == ["read_only"]

    @pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="others exempt no account")
    def test_is_told_to_accounts_that_it_refuses_and_to_no_others(self):
        session = connection.copy()
        with connection.cursor() as cursor:
            cursor.execute("CREATE USER IF NOT EXISTS 'explain_reader'@'%%' IDENTIFIED BY 'plain'", [])
            cursor.execute(
                f"GRANT SELECT, INSERT ON `{connection.settings_dict['NAME']}`.* TO 'explain_reader'@'%%'", []
            )
            session.settings_dict = connection.settings_dict | {"USER": "explain_reader", "PASSWORD": "plain"}
            try:
                assert vendor("default").write_refusal(session) == ""
                cursor.execute("SET GLOBAL read_only = ON")
                assert vendor("default").write_refusal(session) == "read_only"
                assert vendor("default").write_refusal(connection) == ""
                make_job()
            finally:
                cursor.execute("SET GLOBAL read_only = OFF")
                session.close()
                cursor.execute("DROP USER 'explain_reader'@'%%'", [])


@pytest.mark.django_db
class TestMonitorsThatDoNothing:
    def test_are_told_by_leases_that_nobody_ends(self, worker):
        worker("w")
        ids = [make_job(), make_job()]
        for job_id in ids:
            set_columns(claim_one().job_id, lock_until=UtcNowPlus(-90))
            assert first(of_job(job_id), "monitor_dead").evidence["jobs"] == [job_id]
        one = first(checked(explain_backlog()), "monitor_dead")
        assert one.evidence["leases"] == one.evidence["waiting_jobs"] == 2
        assert one.evidence["queues"] == ["q"]
        assert 89 < one.evidence["seconds"] < 150
        reap()
        assert "monitor_dead" not in codes(checked(explain_backlog()))

    def test_are_not_told_of_leases_that_ran_out_a_moment_ago(self, worker):
        worker("w")
        job_id = make_job()
        set_columns(claim_one().job_id, lock_until=UtcNowPlus(-5))
        assert codes(of_job(job_id)) == ["running"]
        assert codes(checked(explain_backlog())) == ["running"]

    @override_settings(JOBQUEUE={"WORKER_SILENT_SECONDS": 30})
    def test_are_told_by_silent_workers_that_nobody_marks_as_stopped(self, worker):
        worker("w", heartbeat_seconds=10)
        Worker.objects.update(heartbeat_at=now() - MINUTE * 0.75)
        assert codes(checked(explain_backlog())) == ["ended"], "monitors have as long again"
        Worker.objects.update(heartbeat_at=now() - 2 * MINUTE)
        one = first(checked(explain_backlog()), "monitor_dead")
        assert one.evidence["silent_workers"] == ["w"]
        assert "w" in one.text
        assert retire_silent(30, using="default") == 1
        assert codes(checked(explain_backlog())) == ["ended"]


def got_through(lease):
    """Whether an ack was not given up after its waits for a lock."""
    try:
        ack(lease)
    except DatabaseBusy:
        return False
    return True


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")
class TestARowLock:
    def test_is_told_with_the_connection_that_holds_it_and_what_it_ran(self, worker, monkeypatch, caplog):
        # Less than an ack waits for a lock before it tries again.
        monkeypatch.setattr(row_locks, "WAIT_SECONDS", 0.2)
        worker("w")
        make_job()
        lease = claim_one(lease_seconds=600)
        thread = threading.Thread(target=self.settle, args=[lease])
        with locked(lease.job_id) as number:
            thread.start()
            told = []
            wait_until(
                lambda: self.is_first(told) or not thread.is_alive(),
                what=lambda: (
                    f"a long wait as the first of {codes(told[-1])}; {self.surroundings(thread)}; {caplog.text}"
                ),
            )
            assert thread.is_alive(), "the ack has ended, though its row is locked"
            one = first(told[-1], "row_lock")
        thread.join()
        assert one.evidence["blocking"] == number
        assert one.evidence["seconds"] >= row_locks.WAIT_SECONDS
        assert one.evidence["locked"].startswith("job_queue")
        assert one.evidence["waiting_statement"].replace("`", "").replace('"', "").startswith("UPDATE job_queue")
        assert str(number) in one.text
        # MariaDB does not say what an idle connection ran.
        assert VENDOR == "mariadb" or "priority" in one.evidence["blocking_statement"]
        assert Job.objects.get().status == Job.Status.DONE
        let_lists_expire()
        assert "row_lock" not in codes(checked(explain_backlog()))

    def test_that_cannot_be_looked_for_is_told_in_the_log(self, monkeypatch, caplog):
        def waits(_connection, _limit):
            raise DatabaseError("maximum statement execution time exceeded")

        monkeypatch.setattr(vendor("default").diagnostics, "waits", waits)
        assert row_locks.row_locks("default") == []
        assert "the waits for locks could not be read, so they are not shown: maximum" in caplog.text

    def test_that_makes_nobody_wait_is_no_reason(self, worker):
        worker("w")
        job_id = make_job()
        with locked(job_id):
            let_lists_expire()
            assert "row_lock" not in codes(checked(explain_backlog()))

    @pytest.mark.skipif(VENDOR != "mysql", reason="only MySQL lists the locks of an idle transaction with their tables")
    def test_is_not_held_by_a_transaction_on_the_job_table_of_another_database(self):
        other = f"{connection.settings_dict['NAME']}_other"
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{other}`")
            try:
                cursor.execute(f"CREATE TABLE `{other}`.job_queue (id INT PRIMARY KEY)")
                lock = f"SELECT id FROM `{other}`.job_queue FOR UPDATE"
                with another_session(f"INSERT INTO `{other}`.job_queue VALUES (1)", lock) as number:
                    assert not vendor("default").diagnostics.may_lock(connection, number, "job_queue")
            finally:
                cursor.execute(f"DROP DATABASE `{other}`")

    @staticmethod
    def is_first(told):
        # The answer itself is kept: a wait that has ended by its limit begins anew, and is short again.
        let_lists_expire()
        # However long that takes: a silent worker would be another cause.
        Worker.objects.update(heartbeat_at=now())
        told.append(checked(explain_backlog()))
        return codes(told[-1])[0] == "row_lock"

    @staticmethod
    def surroundings(thread):
        """Where the thread with the ack stands, and what the server tells of waits."""
        stack = "".join(traceback.format_stack(sys._current_frames()[thread.ident]))
        return f"{stack}{read_server(using='default').waits}"

    @staticmethod
    def settle(lease):
        try:
            # An ack gives up after six waits of a second, and on a busy machine the first look may be later than that.
            while not got_through(lease):
                pass
        finally:
            connection.close()


@pytest.mark.django_db
def test_healthy_jobs_have_none_of_these_reasons(worker):
    worker("w", concurrency=200)
    ids = [make_job(f"q{number % 5}") for number in range(100)]
    for number in range(5):
        claim_one(f"q{number}", worker="w", lease_seconds=3600)
    reasons = [explain_job(job_id)[0] for job_id in ids] + explain_backlog()
    assert {(one.code, one.evidence.get("full")) for one in reasons} == {("running", None), ("workers_busy", False)}
