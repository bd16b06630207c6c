"""Token buckets: in any t seconds at most bucket + rate x t, whatever the clock does."""

import random
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta

import pytest

from jobqueue.gates.buckets import draw

START = datetime(2026, 1, 1, tzinfo=UTC)


def after(seconds):
    return START + timedelta(seconds=seconds)


class Bucket:
    """What draw() remembers between two calls."""

    def __init__(self, per_second):
        self.per_second, self.used_until, self.opens_at = per_second, None, None

    def take(self, seconds, wanted):
        self.used_until, drawn = draw(self.used_until, after(seconds), self.per_second, wanted)
        self.opens_at = drawn.opens_at
        return drawn.tokens


@pytest.mark.parametrize(("per_second", "size"), [(10, 10), (1, 1), (1.9, 1), (2.5, 2), (0.5, 1), (1 / 3600, 1)])
def test_a_full_bucket_holds_a_second_s_worth_and_at_least_one(per_second, size):
    assert Bucket(per_second).take(0, 1000) == size


def test_a_bucket_that_nobody_used_for_years_is_full_and_not_fuller():
    bucket = Bucket(5)
    bucket.take(0, 5)
    assert bucket.take(1e8, 1000) == 5


def test_tokens_come_back_one_by_one():
    bucket = Bucket(4)
    assert bucket.take(0, 4) == 4
    assert [bucket.take(seconds, 9) for seconds in (0.1, 0.25, 0.4, 0.5, 1.0)] == [0, 1, 0, 1, 2]


def test_no_more_is_drawn_than_is_wanted():
    bucket = Bucket(10)
    assert [bucket.take(0, wanted) for wanted in (3, 0, 4, 9)] == [3, 0, 4, 3]


@pytest.mark.parametrize("per_second", [0.1, 1, 3, 7, 10, 1000 / 60, 99.9])
def test_at_the_time_that_it_names_there_is_a_token_and_before_there_is_none(per_second):
    bucket = Bucket(per_second)
    bucket.take(0, 1000)
    for _ in range(50):
        at = (bucket.opens_at - START).total_seconds()
        assert bucket.take(at - 0.5 / per_second, 1) == 0
        assert bucket.take(at, 1) == 1


def test_a_rate_of_0_gives_nothing_ever():
    bucket = Bucket(0.0)
    assert bucket.take(0, 5) == 0
    assert bucket.take(1e6, 5) == 0
    assert bucket.opens_at is None


def starts_by(bucket, times, wanted):
    """The instants of all tokens that are drawn at these times."""
    return [at for at in times for _ in range(bucket.take(at, wanted()))]


def most_within(starts, seconds):
    """The largest number of starts in any window of so many seconds, both ends included; `starts` are sorted."""
    return max(bisect_right(starts, begin + seconds) - bisect_left(starts, begin) for begin in starts)


@pytest.mark.parametrize("per_second", [0.5, 1, 3, 10, 100 / 60, 33.3])
@pytest.mark.parametrize("seed", range(5))
def test_in_any_window_no_more_start_than_bucket_and_rate_allow(per_second, seed):
    chance = random.Random(seed)
    times = sorted(chance.uniform(0, 60) for _ in range(1500))
    starts = starts_by(Bucket(per_second), times, lambda: chance.choice((1, 1, 2, 50)))
    size = max(1, int(per_second))
    assert len(starts) > 0.9 * per_second * 60, "the rate is used up too"
    for window in (0.01, 0.5, 1, 2, 7.3, 30):
        assert most_within(starts, window) <= size + per_second * window + 1e-3


def test_a_million_small_draws_do_not_add_up_to_more_than_the_rate():
    bucket = Bucket(3)
    taken = sum(bucket.take(n / 1000, 1) for n in range(100_000))
    assert taken <= 3 + 3 * 100


class TestAClockThatJumps:
    @pytest.mark.parametrize("back", [0.1, 5, 3600, 1e8])
    def test_back_gives_no_second_burst(self, back):
        bucket = Bucket(10)
        assert bucket.take(1e8, 10) == 10
        assert bucket.take(1e8 - back, 10) == 0

    @pytest.mark.parametrize("back", [0.1, 5, 3600, 1e8])
    def test_back_stops_nobody_for_longer_than_one_token_needs(self, back):
        bucket = Bucket(10)
        bucket.take(1e8, 10)
        bucket.take(1e8 - back, 1)
        assert (bucket.opens_at - after(1e8 - back)).total_seconds() <= 0.1 + 1e-6
        assert bucket.take(1e8 - back + 0.1, 1) == 1

    @pytest.mark.parametrize("ahead", [1, 3600, 1e8])
    def test_ahead_gives_one_bucket_and_no_more(self, ahead):
        bucket = Bucket(10)
        bucket.take(0, 10)
        assert bucket.take(ahead, 1000) == 10
        assert bucket.take(ahead, 1000) == 0

    def test_to_and_fro_never_gives_less_than_nothing_nor_more_than_a_bucket(self):
        bucket, chance = Bucket(5), random.Random(1)
        for _ in range(500):
            at = chance.uniform(0, 1e6)
            assert 0 <= bucket.take(at, chance.choice((1, 9))) <= 5
            assert bucket.used_until >= after(at), "what is used up never lies in the past"


def test_a_slow_rate_that_is_made_fast_begins_with_an_empty_bucket_of_the_fast_one():
    bucket = Bucket(1 / 3600)
    bucket.take(0, 1)
    bucket.per_second = 10
    assert bucket.take(0, 10) == 0
    assert bucket.take(1, 100) == 10
