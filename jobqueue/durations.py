"""Durations as text: 500ms, 10s, 2m, 1h; a number without a unit means seconds."""

from __future__ import annotations

import re

from jobqueue.exceptions import InvalidValue
from jobqueue.validation import SECONDS_MAX

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", re.ASCII)


def parse_seconds(text: str, *, zero: bool = False) -> float:
    """The seconds of a duration such as "500ms". Raises InvalidValue for anything else, and for 0 unless `zero`."""
    match = _PATTERN.fullmatch(text.strip())
    if not match or len(text) > 20:
        raise InvalidValue(f"{text[:40]!r} is not a duration; write 500ms, 10s, 2m, 1h or a number of seconds")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > SECONDS_MAX:
        raise InvalidValue(f"{text!r} is longer than a year; check the unit")
    if seconds == 0 and not zero:
        raise InvalidValue(f"{text!r}: the duration must be above 0")
    return seconds


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
