"""How long a failed job waits."""

import random

import pytest

from jobqueue.backoff import Backoff
from jobqueue.exceptions import InvalidValue


class Fixed:
    """Draws the same point of every range."""

    def __init__(self, share):
        self.share = share

    def uniform(self, a, b):
        return a + (b - a) * self.share


MIDDLE, LOWEST, HIGHEST = Fixed(0.5), Fixed(0.0), Fixed(1.0)


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(1, 5), (2, 10), (3, 20), (4, 40), (8, 640), (10, 2560), (11, 3600), (12, 3600), (500, 3600)],
)
def test_each_failure_doubles_the_wait_up_to_an_hour(failures, seconds):
    assert Backoff().delay_seconds(failures, MIDDLE) == pytest.approx(seconds)


@pytest.mark.parametrize("failures", range(1, 30))
def test_jitter_stays_within_a_fifth_and_never_above_the_cap(failures):
    middle = min(3600, 5 * 2 ** (failures - 1))
    assert Backoff().delay_seconds(failures, LOWEST) == pytest.approx(middle * 0.8)
    assert Backoff().delay_seconds(failures, HIGHEST) == pytest.approx(min(3600, middle * 1.2))


def test_the_jitter_is_drawn_anew_each_time():
    rng = random.Random(1)
    drawn = {Backoff().delay_seconds(3, rng) for _ in range(50)}
    assert len(drawn) > 40
    assert all(16 <= seconds <= 24 for seconds in drawn)


@pytest.mark.parametrize("failures", [2**31, 10**9])
def test_any_number_of_failures_gives_a_finite_wait(failures):
    assert 0 <= Backoff(factor=1000).delay_seconds(failures) <= 3600


@pytest.mark.parametrize(
    "values",
    [
        {"base_seconds": -1},
        {"factor": 0.5},
        {"cap_seconds": -1},
        {"cap_seconds": float("inf")},
        {"base_seconds": float("nan")},
        {"factor": float("nan")},
        {"jitter": 1},
        {"jitter": -0.1},
        {"jitter": float("nan")},
    ],
)
def test_a_back_off_that_could_wait_backwards_or_for_ever_is_refused(values):
    with pytest.raises(InvalidValue):
        Backoff(**values)
