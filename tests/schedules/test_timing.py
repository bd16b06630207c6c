"""When schedules tick."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise, product
from zoneinfo import ZoneInfo

import pytest

from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.schedules.timing import Timing, check_cron, check_zone
from tests.marks import finding

ZONES = ["America/New_York", "Europe/London", "Asia/Seoul", "Australia/Lord_Howe", "Africa/Casablanca"]
#: where the clocks change at midnight
MIDNIGHT = ["Africa/Cairo", "Asia/Beirut"]
EXPRESSIONS = ["*/15 * * * *", "0 * * * *", "30 * * * *", "*/7 1-3 * * *", "30 2 * * *", "30 1 * * *",
               "15,45 2 * * *", "0 3 * * *", "5 */2 * * *", "0 0 * * SUN", "59 23 L * *", "10 2 1-31 * *",
               "45 1,2 * 3,10,11 0"]  # fmt: skip
OF_DAYS = ["*/15 9-10 * * *", "*/30 9 * * 0", "0 */6 * * 5", "*/30 0 25-31 3 *"]
#: left out ticks, or had some in an hour that does not exist
WRONG = [
    ("Australia/Lord_Howe", "*/15 9-10 * * *"), ("Australia/Lord_Howe", "*/30 9 * * 0"),
    ("Africa/Cairo", "0 */6 * * 5"), ("Asia/Beirut", "*/30 0 25-31 3 *"),
]  # fmt: skip
MINUTE = timedelta(minutes=1)


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


@cache
def changes_of(zone, since, until):
    """The instants at which a zone changes its offset, found minute by minute within each day that has one."""
    found = []
    day = since
    while day < until:
        if day.astimezone(zone).utcoffset() != (day + timedelta(days=1)).astimezone(zone).utcoffset():
            minutes = [day + MINUTE * n for n in range(1441)]
            found += [
                b for a, b in pairwise(minutes) if a.astimezone(zone).utcoffset() != b.astimezone(zone).utcoffset()
            ]
        day += timedelta(days=1)
    return found


@cache
def values(field, low, high):
    """The numbers that a field of the expressions above names."""
    names = {"SUN": "0"}
    found = set()
    for part in field.split(","):
        part, _, step = names.get(part, part).partition("/")
        first, _, last = (f"{low}-{high}" if part == "*" else part).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def matches(expression, wall):
    """Whether an expression names this minute on the clock of a wall."""
    minute, hour, day, month, weekday = expression.split()
    last_of_month = (wall + timedelta(days=1)).month != wall.month
    return (
        wall.minute in values(minute, 0, 59)
        and wall.hour in values(hour, 0, 23)
        and (last_of_month if day == "L" else wall.day in values(day, 1, 31))
        and wall.month in values(month, 1, 12)
        and wall.isoweekday() % 7 in values(weekday, 0, 6)
    )


@cache
def calculated(expression, zone, since, until):
    """The ticks in (since, until] by the rule as it is written down, from a look at each single minute."""
    minute, hour, *_ = expression.split()
    if minute.startswith("*") or hour.startswith("*"):
        moments = [since + MINUTE * n for n in range(1, (until - since) // MINUTE + 1)]
        return [moment for moment in moments if matches(expression, moment.astimezone(zone).replace(tzinfo=None))]
    # Each minute that a wall calendar has, those that the clocks leave out included.
    wall = (since.astimezone(zone) - timedelta(hours=3)).replace(tzinfo=None, second=0)
    found = set()
    while wall < (until.astimezone(zone) + timedelta(hours=3)).replace(tzinfo=None):
        if matches(expression, wall):
            real = wall
            while real.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != real:
                real += MINUTE
            found.add(real.replace(tzinfo=zone, fold=0).astimezone(UTC))
        wall += MINUTE
    return sorted(tick for tick in found if since < tick <= until)


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        pytest.param(*case, marks=[finding("S-C1")] if case in WRONG else [])
        for case in (*product(ZONES, EXPRESSIONS), *product([*ZONES, *MIDNIGHT], OF_DAYS))
    ],
)
def test_around_each_change_of_the_clocks_2024_to_2030_the_ticks_are_those_of_a_look_at_each_minute(name, expression):
    zone = ZoneInfo(name)
    changes = changes_of(zone, utc(2024, 1, 1), utc(2031, 1, 1))
    assert bool(changes) == (name != "Asia/Seoul")
    for change in changes or [utc(2026, 3, 29, 1)]:
        since, until = change - timedelta(hours=9), change + timedelta(hours=15)
        timing = Timing(cron=expression, timezone=name)
        found, older = timing.newest(10_000, since, until)
        assert (found, older) == (calculated(expression, zone, since, until), 0)


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("expression", ["30 * * * *", "*/20 * * * *", "30 2 * * *", "15,45 1 * * *"])
def test_the_next_tick_is_the_same_from_each_minute_before_it(name, expression):
    zone = ZoneInfo(name)
    for change in changes_of(zone, utc(2026, 1, 1), utc(2027, 1, 1)) or [utc(2026, 3, 29, 1)]:
        since, until = change - timedelta(hours=3), change + timedelta(hours=3)
        ticks = calculated(expression, zone, since, until + timedelta(days=2))
        timing = Timing(cron=expression, timezone=name)
        for minutes in range(0, 360, 7):
            moment = since + MINUTE * minutes + timedelta(seconds=31)
            assert timing.after(moment) == next(tick for tick in ticks if tick > moment)


def test_a_time_of_day_that_the_clocks_leave_out_comes_at_the_first_moment_after_it():
    timing = Timing(cron="30 2 * * *", timezone="America/New_York")
    assert timing.after(utc(2026, 3, 8, 0)) == utc(2026, 3, 8, 7)  # 03:00, where 02:00 to 02:59 do not exist


def test_a_time_of_day_that_comes_twice_counts_the_first_time():
    timing = Timing(cron="30 1 * * *", timezone="America/New_York")
    assert timing.first(2, utc(2026, 11, 1, 0)) == [utc(2026, 11, 1, 5, 30), utc(2026, 11, 2, 6, 30)]


def test_an_interval_counts_from_the_unix_epoch():
    assert Timing(every_seconds=900).after(utc(2026, 1, 1, 0, 7)) == utc(2026, 1, 1, 0, 15)
    assert Timing(every_seconds=900).after(utc(2026, 1, 1, 0, 15)) == utc(2026, 1, 1, 0, 30)
    assert Timing(every_seconds=1.5).first(2, utc(1970, 1, 1)) == [
        utc(1970, 1, 1, 0, 0, 1, 500_000), utc(1970, 1, 1, 0, 0, 3)
    ]  # fmt: skip


def test_ticks_lie_between_start_and_end_with_both_of_them():
    timing = Timing(every_seconds=60, start_at=utc(2026, 1, 1, 12), end_at=utc(2026, 1, 1, 12, 1))
    assert timing.first(5, utc(2026, 1, 1)) == [utc(2026, 1, 1, 12), utc(2026, 1, 1, 12, 1)]


def test_of_an_outage_of_a_year_the_newest_ticks_are_found_soon():
    for timing in (Timing(every_seconds=1), Timing(cron="* * * * *")):
        found, older = timing.newest(100, utc(2025, 1, 1), utc(2026, 1, 1))
        assert len(found) == 100
        assert found[-1] == utc(2026, 1, 1)
        assert older == 1000
    assert Timing(every_seconds=3600).newest(10, utc(2026, 1, 1), utc(2026, 1, 2))[1] == 14


@pytest.mark.parametrize(
    "wrong",
    ["0 0 30 2 *", "0 0 31 2,4 *", "61 * * * *", "* * * *", "* * * * * *", "@daily", "", "a b c d e", "*/0 * * * *"],
)
def test_an_expression_that_names_no_date_is_refused(wrong):
    with pytest.raises(InvalidValue, match="Nothing was written"):
        check_cron(wrong, "cron")


@finding("S-C8")
@pytest.mark.parametrize("wrong", ["*/90 * * * *", "0 */48 * * *", "5,*/61 * * * *", "0 0 1/40 * *", "0 0 * */13 *"])
def test_a_step_that_is_longer_than_its_field_is_refused(wrong):
    with pytest.raises(InvalidValue, match=r"the step \d+ in the field .* use every="):
        check_cron(wrong, "cron")


@pytest.mark.parametrize("right", ["*/60 * * * *", "0 */24 * * *", "0 0 */31 * *", "0 0 * */12 *", "0 0 * * */7"])
def test_a_step_that_is_as_long_as_its_field_means_its_first_value(right):
    assert check_cron(right, "cron") == right


def test_an_expression_that_is_no_text_is_refused():
    with pytest.raises(InvalidType, match="'0 3"):
        check_cron(5, "cron")


@pytest.mark.parametrize("wrong", ["Europe/Atlantis", "", "../etc/passwd", "Europe"])
def test_an_unknown_zone_is_refused(wrong):
    with pytest.raises(InvalidValue, match="not a time zone"):
        check_zone(wrong, "timezone")


def test_the_expression_is_put_into_words():
    assert Timing(cron="0 3 * * *", timezone="Europe/London").words == "At 03:00 every day (Europe/London)"
    assert Timing(every_seconds=900).words == "every 15m 0s"
