"""Times by bounds, and sums of a process in memory."""

import math

import pytest

from jobqueue.models import JobStat
from jobqueue.stats.ends import BOUNDS_SECONDS, BUCKETS, Ends, Kind, bucket_of, quantile
from jobqueue.stats.recorder import KINDS_MAX, OTHERS, Buffer

MAIL = Kind("mail", "app.send")


def test_a_bound_belongs_to_the_bucket_below_it():
    assert [bucket_of(seconds) for seconds in (0.0, 0.005, 0.0051, 1.0, 86_400.0, 86_401.0, math.inf)] == [
        0, 0, 1, 7, BUCKETS - 2, BUCKETS - 1, BUCKETS - 1,
    ]  # fmt: skip


def test_a_quantile_is_interpolated_within_its_bucket():
    counts = [0] * BUCKETS
    assert quantile(counts, 0.5) is None
    counts[7] = 10  # 0.5 to 1 s
    assert quantile(counts, 0.5) == pytest.approx(0.75)
    counts[8] = 10  # 1 to 2.5 s
    assert quantile(counts, 0.5) == pytest.approx(1.0)
    assert quantile(counts, 0.95) == pytest.approx(2.35)
    assert quantile([0] * (BUCKETS - 1) + [3], 0.5) == BOUNDS_SECONDS[-1]


def test_a_row_has_the_counts_that_were_written_to_it():
    counts = Ends(done=3, retried=1, dead=2, canceled=4, lost=1)
    counts.add_run(0.02, 1.5)
    counts.add_run(-1.0, 7000.0)
    row = JobStat(**counts.columns())
    assert row.wait_times == {"0": 1, "2": 1}
    assert Ends.of(row) == counts
    # A bucket of a later version.
    row.wait_times = {"99": 1, "x": 2}
    assert sum(Ends.of(row).wait_times) == 0


@pytest.mark.parametrize("odd", [None, [1], "1", {"3": "7"}, {"3": 0.5}, {"3": None}, {"-1": 1}])
def test_what_plain_sql_wrote_into_a_histogram_is_not_counted(odd):
    assert sum(Ends.of(JobStat(done=1, wait_times=odd)).wait_times) == 0


def test_the_sums_of_two_counts_are_those_of_all_runs():
    first, second, both = Ends(done=1), Ends(done=2, lost=1), Ends(done=3, lost=1)
    for counts, run in ((first, (0.1, 3.0)), (second, (9.0, 0.01))):
        counts.add_run(*run)
        both.add_run(*run)
    first.add(second)
    assert first == both
    assert (first.wait_us_max, first.run_us_max) == (9_000_000, 3_000_000)


def test_a_buffer_gives_each_count_once():
    buffer = Buffer()
    assert buffer.is_empty
    buffer.count_ends({(MAIL, "done"): 2, (MAIL, "dead"): 1}, lost=False)
    buffer.count_ends({(MAIL, "retried"): 3, (MAIL, "dead"): 1, (MAIL, "canceled"): 1}, lost=True)
    buffer.count_run(MAIL, 0.1, 0.2)
    taken = buffer.take()
    assert list(taken) == [MAIL]
    counts = taken[MAIL]
    assert (counts.done, counts.retried, counts.dead, counts.canceled, counts.lost) == (2, 3, 2, 1, 4)
    assert (counts.runs, counts.total) == (1, 8)
    assert buffer.is_empty
    assert buffer.take() == {}


def test_memory_is_bounded_and_nothing_is_left_out():
    buffer = Buffer()
    for number in range(KINDS_MAX + 50):
        buffer.count_ends({(Kind(f"q{number}", ""), "done"): 1}, lost=False)
    taken = buffer.take()
    assert len(taken) == KINDS_MAX + 1
    assert taken[OTHERS].done == 50
    assert sum(counts.done for counts in taken.values()) == KINDS_MAX + 50
