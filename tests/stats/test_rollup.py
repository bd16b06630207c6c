"""Rows of statistics become fewer, and their sums stay."""

import os
from datetime import timedelta

import pytest

from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.maintenance import cleaner, stat_rollup
from jobqueue.maintenance.stat_rollup import RULES, StatRollup
from jobqueue.models import JobStat
from tests.stats.helpers import add, roll_up, sums

pytestmark = pytest.mark.django_db
SPAN = JobStat.Span


def begin(now, seconds, back):
    """The beginning of the span of `seconds` that is `back` spans ago."""
    at = int(now.timestamp()) // seconds * seconds - back * seconds
    return now + timedelta(seconds=at - now.timestamp())


@pytest.fixture
def now():
    return read_now("default").replace(microsecond=0)


def rows(span):
    return list(JobStat.objects.filter(span=span).order_by("begins_at", "queue", "task"))


def test_rows_of_processes_become_one_of_a_minute(now):
    minute = begin(now, 60, 10)
    for process in range(3):
        add(SPAN.PROCESS, minute, done=1 + process, wait_us=5, wait_us_max=process, run_us_max=9 - process)
        add(SPAN.PROCESS, minute, task="other", dead=1)
    # Their writers may still repeat a write.
    add(SPAN.PROCESS, begin(now, 60, 2), done=50)
    before = sums()
    # Of six rows by task, and six by queue.
    assert roll_up(using="default")["statistics_added_up"] == 12
    first, second = rows(SPAN.MINUTE)
    assert (first.task, first.dead, first.runs, first.wait_us) == ("other", 3, 3, 0)
    assert (second.task, second.done, second.runs, second.wait_us) == ("t", 6, 3, 15)
    assert (second.wait_us_max, second.run_us_max) == (2, 9)
    assert (second.wait_times, second.run_times) == ({"1": 3}, {"2": 3})
    assert second.begins_at == minute
    assert [row.done for row in rows(SPAN.PROCESS)] == [50]
    assert sums() == before
    assert roll_up(using="default")["statistics_added_up"] == 0


def test_minutes_become_hours_and_hours_days(now):
    hour, day = begin(now, 3600, 6), begin(now, 86_400, 12)
    for minute in range(60):
        add(SPAN.MINUTE, hour + timedelta(minutes=minute), done=1)
        add(SPAN.HOUR, day + timedelta(hours=minute % 24), dead=1)
    # An hour that is not old enough as a whole stays as it is.
    add(SPAN.MINUTE, begin(now, 3600, 2), done=7)
    before = sums()
    roll_up(using="default")
    assert [(row.begins_at, row.done) for row in rows(SPAN.HOUR)] == [(hour, 60)]
    assert [(row.begins_at, row.dead) for row in rows(SPAN.DAY)] == [(day, 60)]
    assert [row.done for row in rows(SPAN.MINUTE)] == [7]
    assert sums() == before


def test_a_histogram_that_plain_sql_wrote_stops_no_roll_up(now):
    minute = begin(now, 60, 10)
    odd = JobStat(id=os.urandom(16), span=SPAN.PROCESS, begins_at=minute, queue="q", done=1, wait_times={"3": "x"})
    odd.save(force_insert=True)
    roll_up(using="default")
    assert [(row.done, row.wait_times) for row in rows(SPAN.MINUTE)] == [(1, {})]


def test_queues_have_rows_of_their_own_in_which_tasks_are_added_up(now):
    minute = begin(now, 60, 10)
    for task in range(3):
        add(SPAN.PROCESS, minute, queue="a", task=f"t{task}", done=1, wait_us_max=task)
        add(SPAN.PROCESS, minute, queue="b", task=f"t{task}", dead=2)
    assert roll_up(using="default") == {"statistics_added_up": 12, "statistics_written": 8}
    found = JobStat.objects.filter(span=SPAN.QUEUE_MINUTE, begins_at=minute).order_by("queue")
    assert [(row.queue, row.done, row.dead, row.wait_us_max) for row in found] == [("a", 3, 0, 2), ("b", 0, 6, 0)]
    assert [row.wait_times for row in found] == [{"1": 3}, {"1": 3}]


def test_a_row_that_comes_late_is_added_to_the_one_that_is_there(now):
    minute = begin(now, 60, 10)
    for done in (1, 2):
        add(SPAN.PROCESS, minute, done=done)
        roll_up(using="default")
    assert [row.done for row in rows(SPAN.MINUTE)] == [3]


def test_rows_become_fewer_whatever_the_number_of_tasks(now, monkeypatch):
    """One step reads fewer rows than there are tasks: in the order of queue and task each step still adds some up."""
    monkeypatch.setattr(stat_rollup, "BATCH", 10)
    minute = begin(now, 60, 10)
    for process in range(3):
        for task in range(30):
            add(SPAN.PROCESS, minute, queue=f"q{task % 3}", task=f"t{task}", done=process)
    step = StatRollup()
    done = step.run_once(load(), using="default")
    assert (done["statistics_added_up"], step.more) == (10, True)
    assert done["statistics_written"] <= 4
    roll_up(using="default")
    assert len(rows(SPAN.MINUTE)) == 30
    assert sums()[0] == 30 * 3
    step.run_once(load(), using="default")
    assert not step.more


def test_the_writers_of_rows_have_given_up_before_they_are_added_up():
    from jobqueue.stats.recorder import REPEAT_SECONDS

    # A window is written for two minutes at most, and its last write is repeated until then.
    assert RULES[0].age.total_seconds() >= REPEAT_SECONDS + 60


def test_old_rows_are_deleted(now, settings):
    add(SPAN.DAY, now - timedelta(days=401), done=1)
    add(SPAN.DAY, now - timedelta(days=399), done=2)
    assert cleaner.CLEANERS["statistics"].run_once(load(), using="default").total() == 2
    assert sums()[0] == 2
    settings.JOBQUEUE = {"STAT_RETENTION_SECONDS": None}
    add(SPAN.DAY, now - timedelta(days=4000), done=1)
    assert cleaner.CLEANERS["statistics"].run_once(load(), using="default").total() == 0
