"""Counters of ended jobs never fall, while rows of statistics are added up and deleted."""

from datetime import timedelta

import pytest

from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.maintenance import cleaner, stat_rollup
from jobqueue.models import JobStat
from jobqueue.stats import history
from jobqueue.stats.ends import Kind
from jobqueue.stats.history import total_rows, totals
from tests.stats.helpers import add, roll_up

pytestmark = pytest.mark.django_db
SPAN = JobStat.Span


def done(queue="q", task="t"):
    return totals("default")[Kind(queue, task)].done


@pytest.fixture
def minute():
    return read_now("default").replace(second=0, microsecond=0)


def test_an_end_is_counted_once_before_and_after_each_roll_up(minute):
    add(SPAN.PROCESS, minute, done=1)
    add(SPAN.PROCESS, minute - timedelta(minutes=20), done=10)
    add(SPAN.PROCESS, minute - timedelta(days=20), done=100)
    assert done() == 111
    for _ in range(2):
        roll_up(using="default")
        assert done() == 111
    assert JobStat.objects.filter(span=SPAN.DAY).count() == 1
    add(SPAN.PROCESS, minute - timedelta(minutes=20), done=1000)
    assert done() == 1111
    roll_up(using="default")
    assert done() == 1111
    assert total_rows("default").count() == 1


def test_times_are_added_up_too(minute):
    for _ in range(3):
        add(SPAN.PROCESS, minute - timedelta(minutes=20), wait_us=7, run_us=9)
        roll_up(using="default")
    found = totals("default")[Kind("q", "t")]
    assert (found.runs, found.wait_us, found.run_us) == (3, 21, 27)
    assert (found.wait_times[1], found.run_times[2]) == (3, 3)


def test_a_counter_stays_when_the_rows_it_was_counted_in_are_deleted(minute, settings):
    settings.JOBQUEUE = {"STAT_RETENTION_SECONDS": 86_400}
    add(SPAN.PROCESS, minute - timedelta(days=20), done=5)
    roll_up(using="default")
    # That of the task, and that of its queue.
    assert cleaner.CLEANERS["statistics"].run_once(load(), using="default").total() == 2
    assert not JobStat.objects.exclude(span=SPAN.TOTAL).exists()
    assert done() == 5


def test_a_task_that_has_ended_nothing_for_the_time_of_retention_is_forgotten(minute, settings):
    settings.JOBQUEUE = {"STAT_RETENTION_SECONDS": 86_400}
    add(SPAN.PROCESS, minute - timedelta(minutes=20), done=5)
    roll_up(using="default")
    total_rows("default").update(counted_at=minute - timedelta(days=2))
    assert cleaner.CLEANERS["statistics"].run_once(load(), using="default").total() == 1
    assert totals("default") == {}


def test_a_total_that_another_roll_up_has_locked_is_united_with_ours_later(minute, monkeypatch):
    """Two rows of a task are added up, and the next roll-up makes one of them."""
    add(SPAN.PROCESS, minute - timedelta(minutes=20), done=1)
    roll_up(using="default")
    add(SPAN.PROCESS, minute - timedelta(minutes=20), done=2)
    dialect = type(stat_rollup.vendor("default"))
    lock_rows = dialect.lock_rows

    def locked(self, rows, limit=None):
        return rows.none() if SPAN.TOTAL in rows.query.sql_with_params()[1] else lock_rows(self, rows, limit)

    with monkeypatch.context() as patch:
        patch.setattr(dialect, "lock_rows", locked)
        roll_up(using="default")
    assert total_rows("default").count() == 2
    assert done() == 3
    add(SPAN.PROCESS, minute - timedelta(minutes=20), done=4)
    roll_up(using="default")
    assert total_rows("default").count() == 1
    assert done() == 7


def test_tasks_of_one_name_in_two_queues_and_raw_rows_are_counted_apart(minute):
    for queue, task in (("a", "t"), ("b", "t"), ("a", ""), ("A", "t"), ("a", "u")):
        add(SPAN.PROCESS, minute - timedelta(minutes=20), queue=queue, task=task, done=1)
        roll_up(using="default")
    assert len(totals("default")) == 5
    assert done("A", "t") == done("a", "") == 1


def test_what_is_too_much_to_add_up_is_not_read(minute, monkeypatch):
    monkeypatch.setattr(history, "TOTALS_MAX", 2)
    for task in ("a", "b"):
        add(SPAN.PROCESS, minute, task=task, done=1)
    assert len(totals("default")) == 2
    add(SPAN.PROCESS, minute, task="c", done=1)
    assert totals("default") is None
