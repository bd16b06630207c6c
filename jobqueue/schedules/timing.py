"""When a schedule ticks: a cron expression in a time zone, or an interval counted from the Unix epoch.

The rule for the nights in which clocks change is that of Debian's cron. An expression whose minute or hour begins with
a star follows the real time: an hour that comes twice has its ticks twice. Any other names times of day: those that a
change of the clocks leaves out come at the first moment after it, all as one tick, and those that come twice count the
first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobqueue.exceptions import InvalidType, InvalidValue, WrongSettings

EVERY_SECONDS_MIN = 1.0
CRON_CHARS = 255
#: the fields of an expression, and how many values each has
_FIELDS = (("minute", 60), ("hour", 24), ("day of month", 31), ("month", 12), ("day of week", 7))
#: of ticks that are left out, so many are counted
COUNTED_MAX = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY, _MINUTE, _SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
#: after a change of the clocks, within which a step of cronsim may be too long
_UNSURE_MINUTES = 180


@dataclass(frozen=True, slots=True)
class Interval:
    """Each `every_seconds` from the Unix epoch on, or from `phase_seconds` after it."""

    every_seconds: float
    phase_seconds: float = 0.0

    def after(self, instant: datetime) -> datetime:
        """The first tick after `instant`."""
        every, start = timedelta(seconds=self.every_seconds), _EPOCH + timedelta(seconds=self.phase_seconds)
        return start + ((instant - start) // every + 1) * every


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields, read by cronsim, in a time zone."""

    expression: str
    zone: tzinfo

    def after(self, instant: datetime) -> datetime | None:
        """The first tick after `instant`, in UTC; None if there is none within 50 years."""
        follows = not self._names_times_of_day
        ticks = (tick for tick in self._from(instant) if tick > instant)
        found = next((tick for tick in ticks if not follows or self._exists(tick)), None)
        if found is None or not follows:
            return found
        for change in _clock_changes(self.zone, instant, found):
            minutes = (change + _MINUTE * n for n in range(self._unsure_minutes(change)))
            if (early := next((m for m in minutes if instant < m < found and self._is_tick(m)), None)) is not None:
                return early
        return found

    def _exists(self, tick: datetime) -> bool:
        """Return whether the clock shows the time that cronsim means: a day that begins with a gap has no 0 o'clock."""
        before = tick - _DAY
        same = before.astimezone(self.zone).utcoffset() == tick.astimezone(self.zone).utcoffset()
        return same or self._is_tick(tick)

    def _unsure_minutes(self, change: datetime) -> int:
        """How long after a change of the clocks cronsim may step over ticks."""
        before, after = (at.astimezone(self.zone).utcoffset() for at in (change - _MINUTE, change))
        # Its steps are hours up to the end of the day: of half past each hour, after a change by half an hour.
        whole = before is None or after is None or not (after - before) % timedelta(hours=1)
        return _UNSURE_MINUTES if whole else _UNSURE_MINUTES + _DAY // _MINUTE

    def _is_tick(self, minute: datetime) -> bool:
        return next(self._from(minute - _SECOND), None) == minute

    @property
    def _names_times_of_day(self) -> bool:
        minute, hour, *_ = self.expression.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def _from(self, instant: datetime) -> Iterator[datetime]:
        simulated: Iterator[datetime] = _cronsim().CronSim(self.expression, instant.astimezone(self.zone))
        return (tick.astimezone(UTC) for tick in simulated)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule ticks. One of `cron` and `every_seconds` is set; instants are aware."""

    cron: str | None = None
    every_seconds: float | None = None
    timezone: str = "UTC"
    start_at: datetime | None = None
    end_at: datetime | None = None
    phase_seconds: float = 0.0  # of an interval that was imported

    def after(self, instant: datetime) -> datetime | None:
        """The first tick after `instant`, in UTC, from start_at to end_at; None if there is none."""
        if self.start_at is not None:
            instant = max(instant, self.start_at - timedelta(microseconds=1))
        tick = self._ticks().after(instant)
        return tick if tick is not None and (self.end_at is None or tick <= self.end_at) else None

    def first(self, count: int, after: datetime) -> list[datetime]:
        """The next `count` ticks after an instant; fewer if it ends."""
        found: list[datetime] = []
        tick = self.after(after)
        while tick is not None and len(found) < count:
            found.append(tick)
            tick = self.after(tick)
        return found

    def newest(self, count: int, after: datetime, until: datetime) -> tuple[list[datetime], int]:
        """The newest `count` ticks after an instant, up to another one; and how many older ones there are.

        At most COUNTED_MAX of the older ones are counted.
        """
        found = self._between(after, until, count + COUNTED_MAX)
        if len(found) <= count:
            return found, 0
        if len(found) < count + COUNTED_MAX:
            return found[-count:], len(found) - count
        # So many that reading them all takes too long: look at ever longer times before `until`.
        span = _MINUTE
        while len(found := self._between(max(after, until - span), until, None)) < count and until - span > after:
            span *= 2
        return found[-count:], COUNTED_MAX

    def _between(self, after: datetime, until: datetime, most: int | None) -> list[datetime]:
        found: list[datetime] = []
        tick = self.after(after)
        while tick is not None and tick <= until and len(found) != most:
            found.append(tick)
            tick = self.after(tick)
        return found

    def _ticks(self) -> Interval | Cron:
        if self.cron is not None:
            return Cron(self.cron, zone_of(self.timezone))
        assert self.every_seconds is not None
        return Interval(self.every_seconds, self.phase_seconds)

    @property
    def words(self) -> str:
        """The expression in words, in English."""
        from jobqueue.base.durations import format_seconds

        if self.cron is None:
            return f"every {format_seconds(self.every_seconds or 0.0)}"
        words: str = _cronsim().CronSim(self.cron, _EPOCH).explain()
        return f"{words} ({self.timezone})"


def check_cron(expression: object, what: str) -> str:
    """`expression` if cronsim can read its five fields and it names a date. Raises InvalidType, InvalidValue."""
    if not isinstance(expression, str):
        raise InvalidType(
            f"{what} is a text such as '0 3 * * *', got {type(expression).__name__}. Nothing was written."
        )
    words = " ".join(expression.split())
    if len(words.split(" ")) != 5 or len(words) > CRON_CHARS:
        raise InvalidValue(
            f"{what}={expression[:60]!r} does not have the five fields minute, hour, day of month, month, day of week. "
            "Nothing was written; write for example '0 3 * * *' for 3 o'clock each day, or use every= for seconds."
        )
    cronsim = _cronsim()
    try:
        found = next(cronsim.CronSim(words, _EPOCH + timedelta(days=20_000)), None)
    except cronsim.CronSimError as error:
        wrong = str(error).removeprefix("Bad ")
        raise InvalidValue(
            f"{what}={expression!r} cannot be read: the {wrong} is wrong, or no month has it. Nothing was written."
        ) from None
    for field, (name, most) in zip(words.split(" "), _FIELDS, strict=True):
        steps = [int(part.partition("/")[2]) for part in field.split(",") if part.partition("/")[2].isdigit()]
        if any(step > most for step in steps):
            raise InvalidValue(
                f"{what}={expression!r}: the step {max(steps)} in the field {name} is longer than the {most} values of "
                f"the field, so it would tick once in each of them, whatever the step. Nothing was written; use every= "
                "for such an interval, or name the times."
            )
    if found is None:
        raise InvalidValue(f"{what}={expression!r} names no date in the next 50 years. Nothing was written.")
    return words


def check_zone(name: object, what: str) -> str:
    """`name` if it is a time zone of the system or of the package tzdata. Raises InvalidType, InvalidValue."""
    if not isinstance(name, str):
        raise InvalidType(f"{what} is the name of a time zone, got {type(name).__name__}. Nothing was written.")
    try:
        zone_of(name)
    except InvalidValue:
        raise InvalidValue(
            f"{what}={name[:60]!r} is not a time zone that this system knows. Nothing was written; write for example "
            "'Europe/London', or install the package tzdata if the system has no time zones."
        ) from None
    return name


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """The zone of this name. UTC is not looked up. Raises InvalidValue if this system does not know it."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidValue(
            f"the time zone {name!r:.80} is not known to this system. Update its time zones or the package tzdata, or "
            "give the schedule another timezone."
        ) from None


def _clock_changes(zone: tzinfo, since: datetime, until: datetime) -> Iterator[datetime]:
    """The instants in (since, until] at which the offset of a zone changes, to the second."""
    days = (until - since) // _DAY
    marks = [*(since + _DAY * n for n in range(days + 1)), until]
    for low, high in pairwise(marks):
        if low.astimezone(zone).utcoffset() != high.astimezone(zone).utcoffset():
            yield _change_between(zone, low, high)


def _change_between(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    before = low.astimezone(zone).utcoffset()
    low, high = low.replace(microsecond=0), high.replace(microsecond=0)
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if middle.astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high


def _cronsim() -> Any:
    try:
        import cronsim
    except ModuleNotFoundError as error:
        raise WrongSettings(
            "a schedule with cron= needs the package cronsim, which is not installed. Nothing was written; run: "
            "pip install cronsim, or use every=."
        ) from error
    return cronsim
