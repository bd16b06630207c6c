"""What a process counts, and what it writes when the database does not answer."""

import logging
import os
import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue import transitions
from jobqueue.db import background_writer
from jobqueue.exceptions import JobLost
from jobqueue.models import Job, JobStat
from jobqueue.stats import recorder
from jobqueue.transitions import ack, ack_many, cancel, claim, discard, fail, reap, release, snooze
from jobqueue.transitions.failing import fail_many
from tests.factories import claim_one, expire, make_job, make_jobs, set_columns
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.stats.helpers import counted, of_tasks, sums

pytestmark = pytest.mark.django_db


def test_each_end_is_counted_once_and_in_one_column():
    with counted():
        make_jobs(8)
        leases = claim("q", 8, worker="w")
        ack(leases[0], result=1)
        ack_many(leases[1:3])
        fail(leases[3], error="x")  # it has attempts left
        set_columns(leases[4].job_id, max_attempts=1)
        fail(transitions.leases.lease_of(Job.objects.get(pk=leases[4].job_id), "default"), error="x")
        snooze(leases[5], delay_seconds=9)
        release(leases[6])
        assert cancel(leases[6].job_id)
        assert discard(leases[4].job_id)
    # Of 8 jobs: 3 done, 1 retried, 1 dead, and canceled 2: the released one, and the dead one that was discarded.
    assert sums() == (3, 1, 1, 2, 0)


def test_a_lost_lease_is_counted_by_the_reaper_alone_and_once():
    with counted():
        make_jobs(2)
        again, last = claim("q", 2, worker="w")
        set_columns(last.job_id, max_attempts=1)
        expire(again, last)
        assert reap().total == 2
        with pytest.raises(transitions.leases.LeaseLost):
            ack(again)
    # Of the lost ones one was retried and one is dead: the rate of errors takes each of them once.
    assert sums() == (0, 1, 1, 0, 2)


@finding("O-H3")
def test_a_run_that_died_with_its_process_is_counted_as_lost():
    with counted():
        make_jobs(2)
        again, failed = claim("q", 2, worker="w")
        fail_many([again], error=JobLost("killed"))
        fail(failed, error="x")
    assert sums() == (0, 2, 0, 0, 1)


def test_a_verb_that_is_rolled_back_is_not_counted():
    with counted():
        make_job()
        lease = claim_one()
        with transaction.atomic():
            ack(lease)
            transaction.set_rollback(True)
    assert sums() == (0, 0, 0, 0, 0)


@committed
def test_a_verb_in_a_transaction_is_counted_with_its_commit():
    with counted() as found:
        make_job()
        lease = claim_one()
        with transaction.atomic():
            ack(lease)
            assert found._buffer.is_empty
        assert not found._buffer.is_empty
    assert sums() == (1, 0, 0, 0, 0)


def test_only_a_process_that_has_begun_counts():
    make_job()
    ack(claim_one())
    assert not JobStat.objects.exists()


def test_an_expired_job_that_a_claim_ends_is_canceled():
    with counted():
        make_job(expires_at="2001-01-01T00:00:00Z")
        assert claim("q", worker="w") == []
    assert sums() == (0, 0, 0, 1, 0)


def test_queue_and_task_have_rows_of_their_own_and_raw_rows_have_no_task():
    with counted():
        make_job("a")
        make_job("b", task="app.tasks.f")
        for queue in ("a", "b"):
            ack(claim_one(queue))
    assert sorted(of_tasks().values_list("queue", "task", "done")) == [("a", "", 1), ("b", "app.tasks.f", 1)]


def test_a_queue_has_one_row_for_all_its_tasks():
    with counted():
        for task in ("app.tasks.f", "app.tasks.g"):
            make_job("a", task=task)
            ack(claim_one("a"))
    assert list(JobStat.objects.filter(span=JobStat.Span.QUEUE_PROCESS).values_list("queue", "done")) == [("a", 2)]


def test_a_row_is_of_a_minute_and_two_writes_of_one_minute_are_one_row(monkeypatch):
    found = recorder._begin("default")
    now = [recorder.read_now("default").replace(second=5)]
    monkeypatch.setattr(recorder, "read_now", lambda using: now[0])
    for seconds in (0, 20, 20, 20):
        now[0] += timedelta(seconds=seconds)
        make_job()
        ack(claim_one())
        found.flush()
    assert sorted(of_tasks().values_list("done", flat=True)) == [1, 3]
    assert {row.begins_at.second for row in JobStat.objects.all()} == {0}


def test_a_clock_that_is_set_back_replaces_no_row(monkeypatch):
    found = recorder._begin("default")
    first = recorder.read_now("default")
    for minutes in (0, 1, -1, 0):
        monkeypatch.setattr(recorder, "read_now", lambda using, now=first + timedelta(minutes=minutes): now)
        make_job()
        ack(claim_one())
        found.flush()
    assert sums() == (4, 0, 0, 0, 0)
    assert of_tasks().count() == 4


def test_nothing_is_sent_when_nothing_was_counted(django_assert_num_queries):
    found = recorder._begin("default")
    with django_assert_num_queries(0):
        found.flush()


def test_what_could_not_be_written_is_written_later(monkeypatch):
    found = recorder._begin("default")
    make_jobs(2)
    ack(claim_one())
    monkeypatch.setattr(recorder, "write_rows", broken)
    for _ in range(2):
        with pytest.raises(OperationalError):
            found.flush()
        if Job.objects.filter(status=0).exists():
            ack(claim_one())
    monkeypatch.undo()
    found.flush()
    assert sums() == (2, 0, 0, 0, 0)


def test_a_write_whose_answer_was_lost_counts_once(monkeypatch):
    found, write = recorder._begin("default"), recorder.write_rows

    def lost(*args, **options):
        write(*args, **options)
        raise OperationalError("the answer was lost")

    make_jobs(2)
    ack(claim_one())
    monkeypatch.setattr(recorder, "write_rows", lost)
    with pytest.raises(OperationalError):
        found.flush()
    ack(claim_one())
    monkeypatch.undo()
    found.flush()
    assert sums() == (2, 0, 0, 0, 0)


def test_an_unknown_write_is_not_repeated_once_it_could_have_been_added_up(monkeypatch, caplog):
    found = recorder._begin("default")
    make_jobs(3)
    ack(claim_one())
    monkeypatch.setattr(recorder, "write_rows", broken)
    with pytest.raises(OperationalError):
        found.flush()
    ack_many(claim("q", 2, worker="w"))
    monkeypatch.undo()
    monkeypatch.setattr(recorder, "REPEAT_SECONDS", -1.0)
    with caplog.at_level(logging.WARNING):
        found.flush()
    # At most one write is lost: what was counted after it is stored.
    assert sums() == (2, 0, 0, 0, 0)
    assert "1 ends are missing in the statistics" in caplog.text


def broken(*args, **options):
    raise OperationalError("gone")


@committed
def test_a_thread_writes_by_itself_and_at_the_end(monkeypatch):
    monkeypatch.setattr(background_writer, "FLUSH_SECONDS", 0.05)
    recorder.start("default")
    make_jobs(2)
    ack(claim_one())
    wait_until(lambda: sums()[0] == 1)
    monkeypatch.setattr(background_writer, "FLUSH_SECONDS", 600)
    ack(claim_one())
    recorder.close()
    wait_until(lambda: sums()[0] == 2)


@committed
def test_a_forked_process_counts_nothing_until_it_begins():
    recorder._begin("default")
    connection.close()
    child = os.fork()
    if not child:
        os._exit(recorder._recorder is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_verbs_of_another_database_are_not_counted():
    found = recorder._begin("default")
    make_job()
    lease = claim_one()
    found.note("ack", {Job.Status.DONE: [lease._replace(using="other")]})
    assert found._buffer.is_empty


@committed
def test_a_thread_for_which_there_was_no_room_is_started_with_the_next_end(monkeypatch):
    def no_room(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    recorder.start("default")
    monkeypatch.undo()
    make_job()
    ack(claim_one())
    recorder.close()
    wait_until(lambda: sums()[0] == 1)
