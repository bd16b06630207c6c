"""Durations as text: 500ms, 10s, 2m, 1h, 7d; a number without a unit means seconds."""

from __future__ import annotations

import re
from datetime import timedelta

from jobqueue.base.validation import SECONDS_MAX, check_seconds
from jobqueue.exceptions import InvalidType, InvalidValue

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(\d*)(s|m|h|d)", re.ASCII)
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", re.ASCII)


def parse_seconds(text: str, *, zero: bool = False, years: int = 1) -> float:
    """The seconds of a duration such as "500ms", of `years` at most.

    Raises InvalidValue for anything else, and for 0 unless `zero`.
    """
    match = _PATTERN.fullmatch(text.strip())
    if not match or len(text) > 20:
        raise InvalidValue(f"{text[:40]!r} is not a duration; write 500ms, 10s, 2m, 1h, 7d or a number of seconds")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > years * SECONDS_MAX:
        longest = "a year" if years == 1 else f"{years} years"
        raise InvalidValue(f"{text!r} is longer than {longest}; check the unit")
    if seconds == 0 and not zero:
        raise InvalidValue(f"{text!r}: the duration must be above 0")
    return seconds


def to_seconds(given: object, what: str, *, zero: bool = False) -> float:
    """The seconds of a number, a timedelta, or a text as in parse_seconds(). Raises InvalidType and InvalidValue."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    elif isinstance(given, str):
        try:
            return parse_seconds(given, zero=zero)
        except InvalidValue as error:
            raise InvalidValue(f"{what}: {error}. Nothing was written.") from None
    return check_seconds(given, what, zero=zero)


def parse_rate(given: object, what: str = "rate") -> float:
    """The number per second of a rate such as "10/s", "100/m", "5/h" or "5/30s". Raises InvalidType, InvalidValue."""
    if not isinstance(given, str):
        raise InvalidType(f"{what} is a text such as '10/s', got {type(given).__name__}. Nothing was written.")
    match = _RATE.fullmatch(given.strip()) if len(given) <= 20 else None
    number = float(match[1]) if match else 0.0
    seconds = float(match[2] or 1) * _UNITS[match[3]] if match else 0.0
    if not number or not seconds or seconds > SECONDS_MAX:
        raise InvalidValue(
            f"{what}={given[:40]!r} is not a rate; write 10/s, 100/m, 5/h or 5/30s. Nothing was written."
        )
    if seconds / number > SECONDS_MAX:
        raise InvalidValue(f"{what}={given!r} is less than one in a year; check the unit. Nothing was written.")
    return number / seconds


def format_seconds(seconds: float) -> str:
    """A duration as short text: 38ms, 1.2s, 4m 10s, 2h 5m, 3d 4h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s".replace(".0s", "s")
    for big, small, unit, sub in ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if seconds >= big:
            whole, rest = divmod(int(seconds), big)
            return f"{whole}{unit} {rest // small}{sub}"
    raise AssertionError("unreachable: every duration of 60 s or more has a unit")
