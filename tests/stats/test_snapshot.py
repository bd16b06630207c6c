"""The figures of each queue, whatever waits in it."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from jobqueue import enqueue, enqueue_many, stats
from jobqueue.db import time_limit as limits
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.exceptions import InvalidType, InvalidValue, StatementTimeout
from jobqueue.flow import pause
from jobqueue.models import Job, JobStat
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.stats import live
from jobqueue.transitions import ack, claim
from tests.factories import claim_one, make_job, make_jobs, now, set_columns
from tests.stats.helpers import add, counted

pytestmark = pytest.mark.django_db


def of(queue):
    (found,) = stats.snapshot(queue=queue)
    return found


def test_each_job_is_in_the_count_of_its_state():
    make_jobs(7)
    enqueue("q", 1, run_at=read_now("default") + timedelta(hours=1))
    make_job(priority=-5, run_at=UtcNowPlus(3600))
    held, waits = make_job(gate=HELD_GATE), make_job(gate=PARENTS_GATE)
    leases = claim("q", 4, worker="w")
    ack(leases[0])
    set_columns(leases[1].job_id, status=3, lock_token=None, locked_by=None, locked_at=None, lock_until=None)
    found = of("q")
    assert (found.ready, found.scheduled, found.running, found.failed, found.capped) == (3, 3, 2, 1, False)
    assert (found.held, held != waits) == (1, True)


def test_the_oldest_age_is_that_of_ready_jobs_of_any_priority_and_gate():
    assert of("q").oldest_age_seconds == 0
    begun = now()
    make_job(run_at=UtcNowPlus(-10))
    make_job(run_at=UtcNowPlus(-500), priority=7)
    make_job(run_at=UtcNowPlus(-900), priority=-7, gate=1)
    # It waits for a person: no worker could help.
    make_job(run_at=UtcNowPlus(-5000), gate=HELD_GATE)
    make_job(run_at=UtcNowPlus(5000))
    age = of("q").oldest_age_seconds
    assert 900 <= age <= 900 + (now() - begun).total_seconds()


def test_every_queue_with_jobs_is_there_by_name():
    for queue in ("b", "a", "c-é"):
        make_jobs(2, queue)
    pause("a", reason="x")
    found = stats.snapshot()
    assert [(one.queue, one.ready) for one in found] == [("a", 2), ("b", 2), ("c-é", 2)]
    assert [one.queue for one in stats.snapshot(queue="nothing here")] == ["nothing here"]


def test_no_queue_is_left_out_however_many_there_are(monkeypatch):
    names = [f"q{number}" for number in range(7)]
    for number, name in enumerate(names):
        make_jobs(number + 1, name)
        make_job(name, priority=number)
        make_job(name, gate=HELD_GATE)
    claim("q3", 1, worker="w")
    together = stats.snapshot()
    assert [one.queue for one in together] == names
    monkeypatch.setattr(live, "PORTION", 2)
    apart = stats.snapshot()
    assert [(one.queue, one.ready, one.scheduled, one.running) for one in apart] == [
        (one.queue, one.ready, one.scheduled, one.running) for one in together
    ]
    assert [one.ready for one in apart] == [2, 3, 4, 4, 6, 7, 8]


def test_counts_above_the_cap_are_the_cap(monkeypatch):
    monkeypatch.setattr(live, "COUNT_MAX", 10)
    live._due.cache_clear()
    for cached in (live._not_due, live._any_time, live._of_status):
        cached.cache_clear()
    try:
        enqueue_many("q", [1] * 10)
        assert (of("q").ready, of("q").capped) == (10, False)
        make_job(priority=3, run_at=UtcNowPlus(-900))
        make_job(priority=-3, run_at=UtcNowPlus(-9000))
        found = of("q")
        assert (found.ready, found.capped) == (10, True)
        # The oldest one is found all the same.
        assert found.oldest_age_seconds >= 9000
    finally:
        for cached in (live._due, live._not_due, live._any_time, live._of_status):
            cached.cache_clear()


def test_a_queue_with_too_many_priorities_says_that_its_counts_are_not_exact(monkeypatch):
    for level in range(5):
        make_job(priority=level)
    monkeypatch.setattr(live, "LEVELS_MAX", 3)
    assert (of("q").ready, of("q").capped) == (3, True)


def test_rates_are_those_of_the_last_minutes():
    now = read_now("default")
    minute = now.replace(second=0, microsecond=0)
    span = JobStat.Span
    add(span.PROCESS, minute, done=6, retried=2, dead=2)
    add(span.MINUTE, minute - timedelta(minutes=4), done=10)
    # Too old for the rates; only the dead count for an hour.
    add(span.MINUTE, minute - timedelta(minutes=30), done=1000, dead=5, retried=7)
    add(span.MINUTE, minute - timedelta(minutes=61), done=1000, dead=99)
    # Rows of hours repeat the same ends; and a clock was set back.
    add(span.HOUR, minute.replace(minute=0), done=1000, dead=99)
    add(span.PROCESS, minute + timedelta(hours=1), done=500)
    add(span.PROCESS, minute, queue="other", done=1)
    make_job()
    found = of("q")
    minutes = 4 + (now - minute).total_seconds() / 60
    assert found.throughput_per_minute == pytest.approx(18 / minutes, rel=0.02)
    assert found.dead_per_hour == 7
    assert found.error_rate == pytest.approx(4 / 20)
    assert of("other").error_rate == 0


def test_a_queue_where_nothing_ended_has_rates_of_zero():
    make_job()
    found = of("q")
    assert (found.throughput_per_minute, found.dead_per_hour, found.error_rate) == (0, 0, 0)


def test_what_this_process_has_counted_is_in_the_next_snapshot():
    with counted():
        make_jobs(3)
        for _ in range(3):
            ack(claim_one())
    assert of("q").throughput_per_minute > 0


def test_a_name_that_no_queue_can_have_is_refused():
    for wrong in ("", "a,b", "x" * 65):
        with pytest.raises(InvalidValue):
            stats.snapshot(queue=wrong)
    with pytest.raises(InvalidType):
        stats.snapshot(queue=3)


def test_it_ends_when_its_time_is_over_and_a_transaction_of_the_caller_goes_on(monkeypatch):
    make_job()
    monkeypatch.setattr(live, "READ_SECONDS", 0.5)
    monkeypatch.setattr(limits.time, "monotonic", iter(range(100)).__next__)
    with transaction.atomic():
        with pytest.raises(StatementTimeout, match=r"longer than 0\.5 s"):
            stats.snapshot()
        monkeypatch.undo()
        make_job()
    assert Job.objects.count() == 2
    assert connection.is_usable()
