"""ended() by task: the parts of a long span of time, and the sums of each kind, in bounded reads."""

import os
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.models import JobStat
from jobqueue.stats import history
from jobqueue.stats.ends import Kind
from jobqueue.stats.history import ended
from tests.stats.helpers import add, write

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 27, 12, 34, 56, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
Span = JobStat.Span


def read(length=24 * HOUR, part=HOUR, **which):
    return ended(NOW, length, part, by="task", using="default", **which)


def test_the_parts_are_those_of_the_history():
    add(Span.MINUTE, NOW - 5 * MINUTE, done=3, dead=1, runs=4, wait_us=10, wait_us_max=7, wait_times={"4": 4})
    add(Span.HOUR, NOW - 7 * HOUR, done=30, retried=2, run_times={"7": 5})
    assert read().parts == ended(NOW, 24 * HOUR, HOUR, by="queue", using="default").parts


def test_without_rows_there_are_no_kinds():
    found = read()
    assert (found.kinds, found.share, found.is_cut) == ({}, 1.0, False)
    assert len(found.parts) == 25


def test_each_kind_has_its_sums_those_with_the_most_ends_first():
    add(Span.PROCESS, NOW - MINUTE, queue="a", task="x", done=2, dead=1, retried=4, run_us=5, run_us_max=5)
    add(Span.MINUTE, NOW - 9 * MINUTE, queue="b", task="x", done=9, wait_times={"5": 9})
    add(Span.HOUR, NOW - 9 * HOUR, queue="a", task="x", done=1, run_us=7, run_us_max=3, run_times={"2": 3})
    add(Span.DAY, NOW - 40 * DAY, queue="a", task="x", done=1000)
    found = read()
    assert [*found.kinds] == [Kind("b", "x"), Kind("a", "x")]
    ends = found.kinds[Kind("a", "x")]
    assert (ends.done, ends.dead, ends.ended, ends.retried, ends.run_us) == (3, 1, 4, 4, 12)
    assert ends.error_rate == pytest.approx(5 / 8)
    assert sum(ends.run_times) == 4
    assert 0.1 < found.kinds[Kind("b", "x")].wait_seconds(0.95) <= 0.25


def test_one_queue_or_one_task_can_be_asked_for():
    for queue, task, done in (("a", "x", 1), ("a", "y", 2), ("b", "x", 4)):
        add(Span.MINUTE, NOW - MINUTE, queue=queue, task=task, done=done)
    assert [*read(queue="a").kinds] == [Kind("a", "y"), Kind("a", "x")]
    assert [*read(task="x").kinds] == [Kind("b", "x"), Kind("a", "x")]
    assert sum(part.done for part in read(queue="a", task="x").parts) == 1


def test_of_many_rows_counts_are_exact_and_times_are_those_of_some(monkeypatch):
    monkeypatch.setattr(history, "ROWS_MAX", 100)
    monkeypatch.setattr(history, "ROWS_SAMPLED", 60)
    for number in range(240):
        add(Span.MINUTE, NOW - (number % 60) * MINUTE, task=f"t{number % 3}", done=1, wait_times={"4": 1, "8": 1})
    found = read(HOUR, MINUTE)
    assert found.share == 0.25
    assert sum(part.done for part in found.parts) == 240
    assert [ends.done for ends in found.kinds.values()] == [80, 80, 80]
    # Random ids: 60 are expected, and 20 would be six times the usual distance from it.
    for sampled in (found.parts, found.kinds.values()):
        assert 20 < sum(sum(ends.wait_times) for ends in sampled) / 2 < 100


def test_of_many_tasks_in_few_queues_the_times_of_the_parts_are_exact(monkeypatch):
    monkeypatch.setattr(history, "ROWS_MAX", 100)
    monkeypatch.setattr(history, "ROWS_SAMPLED", 60)
    rows = [
        JobStat(id=os.urandom(16), span=Span.MINUTE, begins_at=NOW - ago * MINUTE, queue="q", task=f"t{task}", done=1,
                wait_times={"4": 1})
        for task in range(80) for ago in range(3)
    ]  # fmt: skip
    write(rows)
    found = read(HOUR, MINUTE)
    assert found.share == 0.25
    assert sum(sum(part.wait_times) for part in found.parts) == 240
    assert 20 < sum(sum(ends.wait_times) for ends in found.kinds.values()) < 100


def test_kinds_beyond_the_limit_are_left_out_and_that_is_told(monkeypatch):
    monkeypatch.setattr(history, "KINDS_MAX", 2)
    for number in range(4):
        add(Span.MINUTE, NOW - MINUTE, task=f"t{number}", done=number + 1)
    found = read()
    assert ([kind.task for kind in found.kinds], found.is_cut) == (["t3", "t2"], True)
    assert sum(part.done for part in found.parts) == 10


def test_the_number_of_statements_does_not_grow_with_the_rows():
    counts = []
    for many in (1, 40):
        for number in range(many):
            add(Span.MINUTE, NOW - MINUTE, task=f"t{number}", done=1)
        with CaptureQueriesContext(connection) as captured:
            read()
        counts.append(len([one for one in captured.captured_queries if "job_stat" in one["sql"]]))
    assert counts == [4, 4]
