"""ended(): parts of a span of time, whatever spans the rows have."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.admin.overview import reading as overview
from jobqueue.models import JobStat
from jobqueue.stats import history
from jobqueue.stats.history import ended, recent
from tests.stats.helpers import add

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 27, 12, 34, 56, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
Span = JobStat.Span


def read(length=15 * MINUTE, part=MINUTE, **which):
    return ended(NOW, length, part, by="queue", using="default", **which).parts


def minute(ago, **columns):
    return {"begins_at": NOW.replace(second=0, microsecond=0) - ago * MINUTE, **columns}


def test_without_rows_all_parts_are_there_and_empty():
    parts = read()
    assert len(parts) == 16
    assert (parts[0].begins_at, parts[-1].begins_at) == (
        datetime(2026, 11, 27, 12, 19, tzinfo=UTC),
        NOW.replace(second=0),
    )
    assert {(part.done, part.wait_seconds(0.5), part.mean_wait_seconds) for part in parts} == {(0, None, None)}


def test_rows_of_processes_and_of_minutes_are_added_up():
    add(Span.PROCESS, **minute(1, done=3, dead=1))
    add(Span.PROCESS, **minute(1, done=4, retried=2), queue="other")
    add(Span.MINUTE, **minute(7, done=9, canceled=5))
    add(Span.MINUTE, **minute(99, done=1000))
    parts = read()
    assert [part.done for part in parts] == [0] * 8 + [9] + [0] * 5 + [7, 0]
    assert (parts[-2].retried, parts[-2].dead, parts[8].canceled) == (2, 1, 5)


def test_the_first_part_has_the_rows_that_begin_with_it():
    add(Span.MINUTE, **minute(15, done=6))
    add(Span.MINUTE, **minute(16, done=1000))
    assert [part.done for part in read()] == [6, *[0] * 15]


def test_hours_and_days_count_where_they_begin():
    add(Span.HOUR, NOW.replace(hour=3, minute=0, second=0, microsecond=0), done=50)
    add(Span.MINUTE, **minute(10, done=2))
    by_hours = read(DAY, 3 * HOUR)
    assert len(by_hours) == 9
    assert {part.begins_at.hour: part.done for part in by_hours if part.done} == {3: 50, 12: 2}
    add(Span.DAY, NOW.replace(hour=0, minute=0, second=0, microsecond=0) - 12 * DAY, done=7)
    by_days = read(30 * DAY, DAY)
    assert [part.done for part in by_days if part.done] == [7, 52]


def test_one_queue_or_one_task_can_be_asked_for():
    add(Span.MINUTE, **minute(7, done=1), queue="a", task="x")
    add(Span.MINUTE, **minute(7, done=2), queue="a", task="y")
    add(Span.MINUTE, **minute(7, done=4), queue="b", task="x")
    total = lambda **which: sum(part.done for part in read(**which))  # noqa: E731
    assert (total(), total(queue="a"), total(task="x"), total(queue="a", task="x")) == (7, 3, 5, 1)


def test_sums_of_large_numbers_are_exact():
    for number in range(3):
        add(Span.MINUTE, **minute(7), wait_us=2**50 + number, run_us=2**51 + 1, task=f"t{number}")
    (part,) = [part for part in read() if part.runs]
    assert (part.wait_us, part.run_us) == (3 * 2**50 + 3, 3 * 2**51 + 3)


def test_rows_of_plain_sql_that_begin_within_a_minute_are_those_of_this_minute():
    add(Span.MINUTE, NOW.replace(minute=30, second=59, microsecond=999_999), done=3)
    assert {part.begins_at.minute: part.done for part in read() if part.done} == {30: 3}


def test_times_are_told_by_shares_of_the_runs():
    times = {"runs": 100, "wait_us": 50_000_000, "wait_us_max": 9_000_000}
    add(Span.MINUTE, **minute(7), wait_times={"4": 50, "9": 50}, run_times={"2": 100}, **times)
    (part,) = [part for part in read() if part.runs]
    assert part.mean_wait_seconds == 0.5
    assert part.wait_us_max == 9_000_000
    assert part.wait_seconds(0.5) == pytest.approx(0.1)
    assert 2.5 < part.wait_seconds(0.95) <= 5
    assert 0.01 < part.run_seconds(0.5) <= 0.025


def test_of_too_many_rows_the_averages_are_exact_and_the_times_are_those_of_some(monkeypatch):
    monkeypatch.setattr(history, "ROWS_MAX", 100)
    monkeypatch.setattr(history, "ROWS_SAMPLED", 60)
    for number in range(240):
        add(Span.MINUTE, **minute(7, runs=1, wait_us=2_000_000), task=f"t{number}")
    found = ended(NOW, 15 * MINUTE, MINUTE, by="queue", using="default")
    (part,) = [part for part in found.parts if part.runs]
    assert (part.mean_wait_seconds, found.share) == (2.0, 0.25)
    # Random ids: 60 are expected, and 20 would be six times the usual distance from it.
    for one in (part, found.queues["q"].whole):
        assert 20 < sum(one.wait_times) < 100


def test_what_plain_sql_wrote_into_a_histogram_is_left_out():
    add(Span.MINUTE, **minute(7), wait_times={"x": 1, "99": 5, "3": "7", "4": 2}, run_times=[1])
    (part,) = [part for part in read() if part.runs]
    assert sum(part.wait_times) == 2
    assert sum(part.run_times) == 0


def test_the_number_of_statements_does_not_grow_with_the_rows():
    counts = []
    for _ in range(2):
        for number in range(20):
            add(Span.MINUTE, **minute(3), task=f"t{number}")
        with CaptureQueriesContext(connection) as captured:
            read()
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_queues_are_told_apart_in_as_many_statements():
    add(Span.MINUTE, **minute(7, done=3, retried=1, dead=2), queue="a", task="x")
    add(Span.PROCESS, **minute(7, done=4), queue="a", task="y", wait_times={"4": 3})
    add(Span.MINUTE, **minute(2, done=5), queue="b")
    add(Span.MINUTE, **minute(99, done=1000), queue="c")
    with CaptureQueriesContext(connection) as captured:
        found = ended(NOW, 15 * MINUTE, MINUTE, by="queue", using="default")
    parts, queues = found.parts, found.queues
    with CaptureQueriesContext(connection) as of_all:
        assert parts == read()
    assert len(captured) == len(of_all)
    assert {*queues} == {"a", "b"}
    whole = queues["a"].whole
    assert (whole.done, whole.retried, whole.dead, whole.runs, sum(whole.wait_times)) == (7, 1, 2, 2, 4)
    assert whole.error_rate == pytest.approx(0.3)
    assert queues["a"].ended == [0] * 8 + [9] + [0] * 7
    assert queues["b"].ended == [0] * 13 + [5, 0, 0]
    assert queues["b"].whole.error_rate == 0.0


def test_of_too_many_rows_the_overview_tells_only_the_averages(monkeypatch):
    monkeypatch.setattr(history, "ROWS_MAX", 1)
    monkeypatch.setattr(history, "ROWS_SAMPLED", 1)
    monkeypatch.setattr(overview, "read_now", lambda using: NOW)
    for number in range(2):
        add(Span.MINUTE, **minute(7, runs=2, wait_us=2_000_000, run_us=6_000_000), task=f"t{number}")
    parts, queues = overview.history("default", 15 * MINUTE, MINUTE)
    whole = queues["q"].whole
    assert (whole.wait_times, whole.run_times, {part.wait_times for part in parts}) == (None, None, {None})
    assert (whole.mean_wait_seconds, whole.mean_run_seconds) == (1.0, 3.0)


def test_figures_of_queues_read_the_rows_of_queues_whatever_the_number_of_tasks():
    add(Span.MINUTE, **minute(3))
    for look in (read, lambda: recent(NOW, "default")):
        with CaptureQueriesContext(connection) as captured:
            look()
        statements = [query["sql"] for query in captured.captured_queries if "job_stat" in query["sql"]]
        assert statements
        assert {tuple(re.findall(r"IN \(([\d, ]+)\)", sql)) for sql in statements} <= {("5, 6, 7, 8",), ("5, 6",)}
