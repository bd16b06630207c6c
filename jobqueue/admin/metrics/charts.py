"""The charts of the page: drawn as SVG on the server, and as data with which a script draws them to zoom in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext

from jobqueue.admin.charts import Series, bars, lines
from jobqueue.admin.metrics.ranges import Range
from jobqueue.stats.history import Part

#: decimals of the values: seconds to the microsecond
_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. `unit` is that of the functions that draw; `shape`: "bars", "lines", or "log" with powers of ten."""

    name: str
    title: str
    unit: str
    shape: str
    series: list[Series]
    nothing: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it says so in words instead of being drawn."""
        return not any(value for one in self.series for value in one.values)

    def svg(self, instants: Sequence[datetime]) -> SafeString:
        """The chart as a figure with a table."""
        if self.shape == "bars":
            return bars(self.title, instants, self.series, unit=self.unit)
        is_log = self.shape == "log"
        return lines(self.title, instants, self.series, unit=self.unit, log=is_log, nothing=self.nothing)


def charts_of(parts: Sequence[Part], span: Range) -> list[Chart]:
    """What ended, which share of the runs failed, how long jobs waited, and how long they ran."""
    ended = [
        Series(gettext("done"), "ok", [part.done for part in parts]),
        Series(gettext("retried"), "retried", [part.retried for part in parts]),
        Series(gettext("failed for good"), "dead", [part.dead for part in parts]),
    ]
    rates = [None if (rate := part.error_rate) is None else 100 * rate for part in parts]
    failed = [Series(gettext("share of all runs"), "dead", rates)]
    waits, run_times = _shares(parts, Part.wait_seconds), _shares(parts, Part.run_seconds)
    return [
        Chart("ended", gettext("Ended"), str(span.unit), "bars", ended),
        Chart("failed", gettext("Failed runs"), "%", "lines", failed, gettext("No run failed in this time.")),
        Chart("waits", gettext("Wait before the start"), "s", "log", waits, gettext("Nothing was run in this time.")),
        Chart("runs", gettext("Run time"), "s", "log", run_times, gettext("Nothing was run in this time.")),
    ]


def _shares(parts: Sequence[Part], seconds: Callable[[Part, float], float | None]) -> list[Series]:
    return [
        Series(gettext("median"), "p50", [seconds(part, 0.5) for part in parts]),
        Series(gettext("95 % at most"), "p95", [seconds(part, 0.95) for part in parts]),
    ]


def zoomable(charts: Sequence[Chart], parts: Sequence[Part], span: Range) -> dict[str, Any] | None:
    """The charts as data for history.js; None in a time zone without a name, which browsers do not know.

    Instants are seconds since 1970 UTC. A value is None where nothing ended.
    """
    zone = getattr(timezone.get_current_timezone(), "key", None)
    drawn = [one for one in charts if not one.is_empty]
    if zone is None or not drawn:
        return None
    return {
        "zone": zone,
        "language": get_language(),
        "seconds": int(span.part.total_seconds()),
        "times": [int(part.begins_at.timestamp()) for part in parts],
        "charts": {
            one.name: {"shape": one.shape, "unit": one.unit, "series": list(_data(one.series))} for one in drawn
        },
    }


def _data(series: Sequence[Series]) -> Iterator[dict[str, Any]]:
    for one in series:
        values = [None if value is None else round(value, _DECIMALS) for value in one.values]
        yield {"name": one.name, "kind": one.kind, "values": values}
