"""How values of other programs become text on a page: escaped, cut, with times people can read."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext

from jobqueue.durations import format_seconds
from jobqueue.exceptions import PayloadError

SHOWN_CHARS = 20_000
NOTHING = "-"

# Controls, lone surrogates (no UTF-8 for them) and what turns the direction of text round: it can make a page lie.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: object, limit: int = SHOWN_CHARS) -> str:
    """`text` cut to `limit`, its deceiving characters spelled out as \\u202e; never marked as safe."""
    found = str.__str__(text) if isinstance(text, str) else str(text)
    more = "..." if len(found) > limit else ""
    # A copy that is a plain str: a SafeString would walk through every later escape.
    return _INVISIBLE.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), found[:limit]) + more


def block(text: object) -> str:
    """Text of many lines."""
    return format_html('<pre class="jobqueue-text">{}</pre>', plain(text))


def pretty(value: Any) -> str:
    """Indented JSON, or why it cannot be read."""
    if value is None:
        return NOTHING
    if isinstance(value, PayloadError):
        return block(value)
    try:
        return block(json.dumps(value, indent=2, ensure_ascii=False))
    except RecursionError:
        # Only the encoder that indents is written in Python; what could be decoded fits the other one.
        return block(json.dumps(value, ensure_ascii=False))


def badge(kind: str, text: str) -> str:
    """A state: the word says it, the colour only helps."""
    return format_html('<span class="jobqueue-state jobqueue-{}">{}</span>', kind, text)


def last_line(text: str | None, limit: int = 120) -> str:
    """The last line of an error; it names the exception."""
    lines = (text or "").strip().splitlines()
    return plain(lines[-1], limit) if lines else NOTHING


def span(seconds: float) -> str:
    """A duration without its direction; tenths of seconds only where they tell something."""
    size = abs(seconds)
    return format_seconds(size if size < 10 else float(round(size)))


def relative(instant: datetime, now: datetime) -> str:
    """in 5m 3s, 12s ago"""
    seconds = (instant - now).total_seconds()
    return (gettext("in %(time)s") if seconds > 0 else gettext("%(time)s ago")) % {"time": span(seconds)}


def moment(instant: datetime | None, now: datetime) -> str:
    """2026-01-31 12:01:07 UTC (5m 3s ago)"""
    if instant is None:
        return NOTHING
    return f"{stamp(instant)} UTC ({relative(instant, now)})"


def stamp(instant: datetime) -> str:
    """2026-01-31 12:01:07 in UTC, whatever the site's zone."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def label(model: Any, field: str) -> Any:
    """The title of a model's field."""
    return model._meta.get_field(field).verbose_name
