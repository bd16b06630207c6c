"""What a scrape shows of the whole queue, as Prometheus' own parser reads it."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from jobqueue import enqueue, metrics
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.locks import mutex
from jobqueue.models import JobStat, LockStat
from jobqueue.models.job import HELD_GATE
from jobqueue.stats import history, recorder
from jobqueue.stats.ends import BOUNDS_SECONDS
from jobqueue.transitions import ack, claim, discard, fail, reap
from tests.blocking import let_lists_expire
from tests.factories import expire, make_job, make_jobs, set_columns
from tests.marks import committed
from tests.metrics.helpers import figures, of
from tests.patience import wait_until
from tests.settings import VENDOR
from tests.stats.helpers import add, counted, roll_up

pytestmark = pytest.mark.django_db


def test_jobs_are_counted_by_queue_and_state():
    make_jobs(3)
    make_job("slow", run_at=UtcNowPlus(-500))
    enqueue("q", 1, run_at=read_now("default") + timedelta(hours=1))
    (lease,) = claim("q", 1, worker="w")
    make_job("slow", gate=HELD_GATE)
    found = figures()
    states = ("ready", "scheduled", "held", "running", "failed")
    assert [of(found, "jobqueue_jobs", queue="q", state=state) for state in states] == [2, 1, 0, 1, 0]
    assert [of(found, "jobqueue_jobs", queue="slow", state=state) for state in states] == [1, 0, 1, 0, 0]
    assert 500 <= of(found, "jobqueue_oldest_age_seconds", queue="slow") < 560
    assert of(found, "jobqueue_jobs_capped", queue="q") == 0
    set_columns(lease.job_id, status=3, lock_token=None, locked_by=None, locked_at=None, lock_until=None)
    assert of(figures(), "jobqueue_jobs", queue="q", state="failed") == 1


def test_each_end_is_in_the_counter_of_its_kind():
    with counted() as recording:
        make_jobs(6)
        leases = claim("q", 6, worker="w")
        ack(leases[0])
        recording.count_run(leases[0], 0.2)
        fail(leases[1], error="x")
        set_columns(leases[2].job_id, max_attempts=1)
        expire(leases[2], leases[3])
        reap()
        discard(leases[2].job_id)
    found = figures()
    ends = ("done", "retried", "dead", "canceled", "lost")
    labels = {"queue": "q", "task": ""}
    assert [of(found, f"jobqueue_jobs_{end}_total", **labels) for end in ends] == [1, 2, 1, 1, 2]
    assert of(found, "jobqueue_ended_complete") == 1
    assert of(found, "jobqueue_job_run_seconds_count", **labels) == 1
    assert of(found, "jobqueue_job_run_seconds_sum", **labels) == pytest.approx(0.2)
    assert of(found, "jobqueue_job_run_seconds_bucket", **labels, le="0.1") == 0
    assert of(found, "jobqueue_job_run_seconds_bucket", **labels, le="0.25") == 1


def test_buckets_are_cumulative_and_end_with_the_count():
    minute = read_now("default").replace(second=0, microsecond=0)
    times = {"0": 5, "3": 2, str(len(BOUNDS_SECONDS)): 1}
    add(JobStat.Span.PROCESS, minute, runs=8, wait_us=3_000_000, wait_times=times)
    roll_up(using="default")
    found = figures()
    bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
    counts = [of(found, "jobqueue_job_wait_seconds_bucket", queue="q", task="t", le=bound) for bound in bounds]
    assert counts == [5, 5, 5, *[7] * (len(bounds) - 4), 8]
    assert of(found, "jobqueue_job_wait_seconds_count", queue="q", task="t") == 8
    assert of(found, "jobqueue_job_wait_seconds_sum", queue="q", task="t") == 3


def test_hostile_names_are_escaped():
    name = 'a"b\\c{d}=e f'
    make_job(name)
    add(JobStat.Span.PROCESS, read_now("default"), queue=name, task="x", done=1)
    found = figures()
    assert of(found, "jobqueue_jobs", queue=name, state="ready") == 1
    assert of(found, "jobqueue_jobs_done_total", queue=name, task="x") == 1


def test_figures_of_ended_jobs_that_are_too_many_are_left_out_and_said_to_be(monkeypatch):
    for task in ("a", "b", "c"):
        add(JobStat.Span.PROCESS, read_now("default"), task=task, done=1)
    monkeypatch.setattr(metrics, "KINDS_MAX", 2)
    found = figures()
    assert of(found, "jobqueue_jobs_done_total", queue="q", task="b") == 1
    assert of(found, "jobqueue_jobs_done_total", queue="q", task="c") is None
    assert of(found, "jobqueue_ended_complete") == 0
    monkeypatch.undo()
    monkeypatch.setattr(history, "TOTALS_MAX", 2)
    found = figures()
    # A missing counter gives no rate; a counter that lacks rows would give a wrong one.
    assert of(found, "jobqueue_jobs_done_total", queue="q", task="a") is None
    assert of(found, "jobqueue_ended_complete") == 0


def test_redone_transactions_of_the_last_hour_are_there():
    for seconds, number in ((10, 1), (3000, 2), (4000, 99)):
        key = bytes([number]) * 16
        row = LockStat(id=key, kind="transaction", lock_key="ack deadlock", contended=number, failed=1)
        row.save(force_insert=True)
        LockStat.objects.filter(pk=key).update(counted_at=UtcNowPlus(-seconds))
    found = figures()
    assert of(found, "jobqueue_transactions_redone_per_hour", verb="ack", error="deadlock") == 3
    assert of(found, "jobqueue_transactions_given_up_per_hour", verb="ack", error="deadlock") == 2


def lock_waits():
    let_lists_expire()
    return of(figures(), "jobqueue_lock_waits")


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite does not tell who waits")
@committed
def test_a_session_that_waits_for_a_lock_is_counted():
    assert lock_waits() == 0
    started, release = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            mutex("m")
            started.set()
            release.wait()
        connection.close()

    def wait():
        with transaction.atomic():
            mutex("m")
        connection.close()

    threads = [threading.Thread(target=hold), threading.Thread(target=wait)]
    try:
        threads[0].start()
        wait_until(started.is_set, what="the holder")
        threads[1].start()
        wait_until(lambda: lock_waits() == 1, what="the wait")
        found = figures()
        assert of(found, "jobqueue_lock_wait_longest_seconds") >= 0
        assert of(found, "jobqueue_server_deadlocks_total") >= 0
    finally:
        release.set()
        for thread in threads:
            thread.join()


@pytest.mark.skipif(VENDOR != "sqlite", reason="the other servers tell")
def test_what_the_server_does_not_tell_has_no_sample():
    found = figures()
    assert of(found, "jobqueue_lock_waits") is None
    assert of(found, "jobqueue_server_deadlocks_total") is None


def test_only_processes_that_count_change_the_counters():
    assert recorder._recorder is None
    make_job()
    ack(claim("q", worker="w")[0])
    assert of(figures(), "jobqueue_jobs_done_total", queue="q", task="") is None
    assert metrics.__all__ == ["view"]
