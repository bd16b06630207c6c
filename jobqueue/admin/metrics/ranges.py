"""The spans of time that the page can show."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class Range(NamedTuple):
    """A span of time. `part` is the finest that all statistics of this age still have."""

    key: str
    word: StrOrPromise
    length: timedelta
    part: timedelta
    unit: StrOrPromise
    kept_seconds: int  # how long everybody is shown what was read


RANGES = (
    Range("1h", _("1 hour"), HOUR, MINUTE, _("jobs in a minute"), 10),
    Range("24h", _("24 hours"), 24 * HOUR, HOUR, _("jobs in an hour"), 60),
    Range("7d", _("7 days"), 7 * DAY, HOUR, _("jobs in an hour"), 60),
    Range("30d", _("30 days"), 30 * DAY, DAY, _("jobs in a day"), 300),
    Range("90d", _("90 days"), 90 * DAY, DAY, _("jobs in a day"), 300),
)


def offered(retention_seconds: float | None) -> list[Range]:
    """The ranges that statistics can fill: up to the first one that is at least as long as statistics are kept."""
    found = []
    for one in RANGES:
        found.append(one)
        if retention_seconds is not None and one.length.total_seconds() >= retention_seconds:
            break
    return found
