"""Axes: round numbers and round instants."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from jobqueue.admin.page.charts import TIME_TICKS, VALUE_TICKS, linear, logarithmic, time_ticks

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)


@pytest.mark.parametrize("highest", [0.0003, 0.7, 1, 3, 4, 4.1, 9.99, 10, 37, 99, 100, 12_345, 5e7])
def test_the_top_is_round_and_not_below_the_highest_value(highest):
    scale = linear(highest)
    assert scale.ticks[0] == 0
    assert highest <= scale.top == scale.ticks[-1] < 3 * highest
    assert 2 <= len(scale.ticks) <= VALUE_TICKS + 2
    step = scale.ticks[1]
    assert f"{step:e}"[0] in "125"
    assert 0 < scale.height(highest) <= 1


def test_counts_have_no_lines_between_whole_numbers():
    assert linear(2, whole=True).ticks == (0, 1, 2)
    assert linear(1, whole=True).ticks == (0, 1)


def test_without_values_there_is_an_axis_all_the_same():
    assert linear(0).ticks == (0, 1)
    assert logarithmic([]).top == 1


def test_a_logarithmic_axis_has_whole_powers_of_ten_around_the_values():
    scale = logarithmic([0.02, 3.0, 0.0])
    assert scale.ticks == pytest.approx((0.01, 0.1, 1, 10))
    assert scale.height(0.01) == scale.height(0) == 0
    assert scale.height(10) == 1
    assert scale.height(1) == pytest.approx(2 / 3)
    assert logarithmic([1.0]).ticks == pytest.approx((1, 10))


@pytest.mark.parametrize("minutes", [5, 15, 60, 90, 360, 1440, 4320, 10_080, 43_200])
def test_a_time_axis_has_few_labels_at_round_instants(minutes):
    ticks = time_ticks(NOON, NOON + timedelta(minutes=minutes), UTC)
    assert 1 <= len(ticks) <= TIME_TICKS + 1
    assert all(NOON <= instant <= NOON + timedelta(minutes=minutes) for instant, _ in ticks)
    assert all(instant.second == 0 for instant, _ in ticks)


def test_labels_are_in_the_time_zone_and_midnight_is_a_date():
    zone = ZoneInfo("Asia/Seoul")
    ticks = time_ticks(NOON, NOON + timedelta(hours=6), zone)
    assert [label for _, label in ticks] == ["21:00", "22:00", "23:00", "03-09", "01:00", "02:00", "03:00"]


def test_a_day_with_23_hours_moves_no_later_tick():
    zone = ZoneInfo("America/New_York")
    begins = datetime(2026, 3, 7, 5, tzinfo=UTC)
    labels = [label for _, label in time_ticks(begins, begins + timedelta(days=2), zone)]
    assert labels == ["03-07", "12:00", "03-08", "12:00", "03-09"]
