"""Charts as SVG, drawn on the server: they need no script, have a table beside them, and follow the admin's theme."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any, NamedTuple

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext

from jobqueue.admin.page.formatting import StrOrPromise, plain, span
from jobqueue.stats.history import Part

#: lines of the value axis above zero, and labels of the time axis, at most
VALUE_TICKS, TIME_TICKS = 4, 6
_STEPS = tuple(
    timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 43_200)
)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Scale:
    """The value axis: from the bottom to `top`, with lines at `ticks`. `log`: equal distances are equal factors."""

    bottom: float
    top: float
    ticks: tuple[float, ...]
    log: bool = False

    def height(self, value: float) -> float:
        """The share of the height, 0 to 1, at which a value stands."""
        if not self.log:
            return min(1.0, max(0.0, value / self.top))
        if value <= self.bottom:
            return 0.0
        return min(1.0, math.log(value / self.bottom) / math.log(self.top / self.bottom))


def linear(highest: float, *, whole: bool = False) -> Scale:
    """From 0 to a round number that is not below `highest`; with `whole`, no line stands between whole numbers."""
    if highest <= 0:
        return Scale(0.0, 1.0, (0.0, 1.0))
    raw = highest / VALUE_TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    lines = math.ceil(highest / step - 1e-9)
    return Scale(0.0, lines * step, tuple(number * step for number in range(lines + 1)))


def logarithmic(values: Sequence[float]) -> Scale:
    """Whole powers of ten around the positive values."""
    found = [value for value in values if value > 0]
    if not found:
        return Scale(0.1, 1.0, (0.1, 1.0), log=True)
    low = math.floor(math.log10(min(found)) + 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(found)) - 1e-9))
    every = math.ceil((high - low) / VALUE_TICKS)
    return Scale(10.0**low, 10.0**high, tuple(10.0**power for power in range(low, high + 1, every)), log=True)


def time_ticks(begins: datetime, ends: datetime, zone: tzinfo) -> list[tuple[datetime, str]]:
    """The round instants of a time zone between the two, TIME_TICKS at most, each with its label.

    Of ticks less than a day apart "12:05", and at midnight the date; else the date as "11-27".
    """
    length = ends - begins
    step = next((step for step in _STEPS if length / step <= TIME_TICKS), _STEPS[-1])
    first = begins.astimezone(zone)
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    # By the clock on the wall, so that a day with 23 hours moves no later tick.
    wall = midnight + step * math.ceil((first - midnight) / step)
    found = []
    while (instant := wall) <= ends.astimezone(zone):
        clock = step < _DAY and (wall.hour, wall.minute) != (0, 0)
        found.append((instant, f"{wall:%H:%M}" if clock else f"{wall:%m-%d}"))
        wall += step
    return found


#: pixels of the part with the values, of the space above it, and of the whole with the labels of the time axis
PLOT_HEIGHT, ABOVE, HEIGHT = 170, 8, 202
#: the kinds that charts.css has colours, patterns and dashes for
KINDS = ("ok", "retried", "dead", "canceled", "ready", "running", "p50", "p95")
SECONDS = "s"


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one thing, one for each instant of the chart; None where there is none. `kind` is one of KINDS."""

    name: str
    kind: str
    values: Sequence[float | None]


class Range(NamedTuple):
    """A span of time that a page of charts can show, in parts."""

    key: str
    word: StrOrPromise
    length: timedelta
    part: timedelta
    unit: StrOrPromise  # of what ended in a part
    kept_seconds: int  # how long everybody is shown what was read


def ended_series(parts: Sequence[Part]) -> list[Series]:
    """The jobs that ended in each part of a time."""
    return [
        Series(gettext("done"), "ok", [part.done for part in parts]),
        Series(gettext("retried"), "retried", [part.retried for part in parts]),
        Series(gettext("failed for good"), "dead", [part.dead for part in parts]),
    ]


def value_text(value: float, unit: str) -> str:
    """A value in words: "1,200", or of seconds "250ms"."""
    if unit == SECONDS:
        return span(value)
    decimals = 0 if value == int(value) else 1 if value >= 10 else 2
    return str(number_format(value, decimal_pos=decimals, force_grouping=True))


def instant_text(instant: datetime) -> str:
    """An instant in the active time zone, to the minute."""
    return f"{timezone.localtime(instant):%Y-%m-%d %H:%M}"


def percent(share: float) -> str:
    """A share as a coordinate of SVG."""
    return f"{100 * share:.2f}%"


def figure(
    title: str,
    instants: Sequence[datetime],
    series: Sequence[Series],
    unit: str,
    draw: Callable[[str], tuple[str, Scale]],
    mark: str,
    nothing: str = "",
) -> SafeString:
    """The chart. draw(id) gives what is between the axes, and the scale of the values; `id` begins all ids in it.

    `mark`: what the legend shows of a series, with its place for the kind and for that id. `nothing`: what is said
    instead if no value is above 0.
    """
    key = "jobqueue-chart-" + hashlib.sha256(title.encode("utf-8", "replace")).hexdigest()[:8]
    context: dict[str, Any] = {"title": title, "unit": "" if unit == SECONDS else unit}
    if not any(value for one in series for value in one.values):
        context["nothing"] = nothing or gettext("Nothing ended in this time.")
        return render_to_string("admin/jobqueue/chart.html", context)
    inside, scale = draw(key)
    heights = [(tick, PLOT_HEIGHT * (1 - scale.height(tick))) for tick in scale.ticks]
    context |= {
        "key": key,
        "height": HEIGHT,
        "above": ABOVE,
        "summary": _summary(title, series, unit),
        "legend": [(format_html(mark, kind=_kind(one), key=key), plain(one.name)) for one in series],
        "values": [(f"{y:.1f}", f"{y + 4:.1f}", value_text(tick, unit)) for tick, y in heights],
        "inside": inside,
        "times": list(_times(instants)),
        "time_title": gettext("time (%(zone)s)") % {"zone": timezone.get_current_timezone_name()},
        "rows": [
            (
                instant_text(instant),
                ["-" if (value := one.values[place]) is None else value_text(value, unit) for one in series],
            )
            for place, instant in enumerate(instants)
        ],
    }
    return render_to_string("admin/jobqueue/chart.html", context)


def _kind(series: Series) -> str:
    if series.kind not in KINDS:
        raise ValueError(f"{series.kind!r} is no kind of a series: {', '.join(KINDS)}")
    return series.kind


def _summary(title: str, series: Sequence[Series], unit: str) -> str:
    """What the chart shows, in a sentence."""
    parts = []
    for one in series:
        known = [value for value in one.values if value is not None]
        if known:
            facts = {"name": plain(one.name), "most": value_text(max(known), unit), "last": value_text(known[-1], unit)}
            parts.append(gettext("%(name)s: at most %(most)s, last %(last)s") % facts)
    return f"{title}. {'; '.join(parts)}."


def _times(instants: Sequence[datetime]) -> Iterator[tuple[str, str, str]]:
    """(place, how the label is aligned to it, label) of the ticks of the time axis."""
    begins, ends = instants[0], instants[-1] + (instants[-1] - instants[0]) / max(1, len(instants) - 1)
    length = (ends - begins).total_seconds() or 1.0
    for instant, label in time_ticks(begins, ends, timezone.get_current_timezone()):
        share = (instant - begins).total_seconds() / length
        yield percent(share), "start" if share < 0.04 else "end" if share > 0.96 else "middle", label


#: the part of its place that a bar fills
_FILLED = 0.8
_BAR_MARK = '<rect fill="url(#{key}-{kind})" width="22" height="10"/>'
#: the hatching of each kind, so that bars read without colours: the distance of its lines, and their angle
_HATCHES = {"retried": (6, 45), "dead": (4, 135), "canceled": (8, 90), "running": (8, 0)}


def bars(title: str, instants: Sequence[datetime], series: Sequence[Series], *, unit: str) -> SafeString:
    """One bar for each instant, in which the series stand on each other, the first at the bottom.

    `instants`: aware, in order, equally far apart, at least one. `unit`: of the values, as "jobs/min"; "s" writes them
    as durations. The title and the names of the series must be in the active language. Raises ValueError for a series
    of an unknown kind.
    """
    return figure(title, instants, series, unit, partial(_stacked, instants, series, unit), _BAR_MARK)


def _stacked(instants: Sequence[datetime], series: Sequence[Series], unit: str, key: str) -> tuple[str, Scale]:
    sums = [sum(one.values[place] or 0 for one in series) for place in range(len(instants))]
    scale = linear(max(sums), whole=all(float(value).is_integer() for value in sums))
    width = 1 / len(instants)
    drawn = (_bar(place, width, instant, series, scale, unit, key) for place, instant in enumerate(instants))
    fills = format_html("<defs>{}</defs>", mark_safe("".join(_fill(one.kind, key) for one in series)))
    return mark_safe(fills + "".join(drawn)), scale


def _fill(kind: str, key: str) -> str:
    """The colour of a kind, with its hatching."""
    size, angle = _HATCHES.get(kind, (8, 0))
    hatch = format_html('<line class="jobqueue-hatch" x1="0" y1="0" x2="0" y2="{}"/>', size) if kind in _HATCHES else ""
    return format_html(
        '<pattern id="{}-{}" width="{}" height="{}" patternUnits="userSpaceOnUse" patternTransform="rotate({})"><rect '
        'class="jobqueue-c-{}" width="{}" height="{}"/>{}</pattern>',
        *(key, kind, size, size, angle, kind, size, size, hatch),
    )


def _bar(
    place: int, width: float, instant: datetime, series: Sequence[Series], scale: Scale, unit: str, key: str
) -> str:
    """One bar, with its figures as the hint of the whole height above its place."""
    left, below, parts = (place + (1 - _FILLED) / 2) * width, 0.0, []
    for one in series:
        value = one.values[place] or 0
        if value:
            top, bottom = scale.height(below + value), scale.height(below)
            high = max(1.0, PLOT_HEIGHT * (top - bottom))
            y = PLOT_HEIGHT * (1 - bottom) - high
            parts.append((key, one.kind, percent(left), percent(_FILLED * width), f"{y:.1f}", f"{high:.1f}"))
            below += value
    drawn = format_html_join("", '<rect fill="url(#{}-{})" x="{}" width="{}" y="{}" height="{}"/>', parts)
    hint = _bar_hint(place, instant, series, unit)
    space = '<g>{}<rect class="jobqueue-hover" x="{}" width="{}" y="0" height="{}"><title>{}</title></rect></g>'
    return format_html(space, drawn, percent(place * width), percent(width), PLOT_HEIGHT, hint)


def _bar_hint(place: int, instant: datetime, series: Sequence[Series], unit: str) -> str:
    named = (f"{plain(one.name)} {value_text(one.values[place] or 0, unit)}" for one in series)
    return f"{instant_text(instant)}: {', '.join(named)}"


#: the width in which lines are drawn; they are stretched to that of the page
_WIDTH = 1000
_LINE_MARK = '<line class="jobqueue-l-{kind}" x1="0" y1="5" x2="22" y2="5"/>'


def lines(
    title: str,
    instants: Sequence[datetime],
    series: Sequence[Series],
    *,
    unit: str,
    log: bool = False,
    nothing: str = "",
) -> SafeString:
    """One line for each series, broken where it has no value. `log`: the value axis has powers of ten.

    `nothing`: what is said instead if no value is above 0. The other arguments are those of bars().
    """
    return figure(title, instants, series, unit, partial(_polylines, instants, series, unit, log), _LINE_MARK, nothing)


def _polylines(
    instants: Sequence[datetime], series: Sequence[Series], unit: str, log: bool, key: str
) -> tuple[str, Scale]:
    known = [value for one in series for value in one.values if value is not None]
    scale = logarithmic(known) if log else linear(max(known))
    drawn = format_html_join(
        "",
        '<polyline class="jobqueue-l-{}" points="{}"/>',
        ((one.kind, points) for one in series for points in _pieces(one.values, scale)),
    )
    width = 1 / len(instants)
    hover = format_html_join(
        "",
        '<rect class="jobqueue-hover" x="{}" width="{}" y="0" height="{}"><title>{}</title></rect>',
        (
            (percent(place * width), percent(width), PLOT_HEIGHT, _line_hint(place, instant, series, unit))
            for place, instant in enumerate(instants)
        ),
    )
    frame = '<svg width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>{}'
    return format_html(frame, PLOT_HEIGHT, _WIDTH, PLOT_HEIGHT, drawn, hover), scale


def _pieces(values: Sequence[float | None], scale: Scale) -> Iterator[str]:
    """The points of each part of a line that has values throughout. A single value is a short line."""
    width, piece = _WIDTH / len(values), list[tuple[float, float]]()
    for place, value in [*enumerate(values), (len(values), None)]:
        if value is not None:
            piece.append(((place + 0.5) * width, PLOT_HEIGHT * (1 - scale.height(value))))
            continue
        if len(piece) == 1:
            ((x, y),) = piece
            piece = [(x - width / 4, y), (x + width / 4, y)]
        if piece:
            yield " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
        piece = []


def _line_hint(place: int, instant: datetime, series: Sequence[Series], unit: str) -> str:
    named = (
        f"{plain(one.name)} {value_text(value, unit)}" for one in series if (value := one.values[place]) is not None
    )
    return f"{instant_text(instant)}: {', '.join(named) or '-'}"


SPARK_WIDTH, SPARK_HEIGHT = 96, 22


def sparkline(values: Sequence[float], *, label: str) -> SafeString:
    """The course of some values, from 0 up. `label` says what they are, for those who do not see them.

    Empty if there are fewer than two values.
    """
    if len(values) < 2:
        return SafeString("")
    top, step = max(max(values), 1e-9), (SPARK_WIDTH - 2) / (len(values) - 1)
    points = " ".join(
        f"{1 + place * step:.1f},{HEIGHT - 2 - (HEIGHT - 4) * max(0.0, value) / top:.1f}"
        for place, value in enumerate(values)
    )
    return format_html(
        '<svg class="jobqueue-spark" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}"><polyline '
        'points="{}"/></svg>',
        label,
        SPARK_WIDTH,
        SPARK_HEIGHT,
        SPARK_WIDTH,
        SPARK_HEIGHT,
        points,
    )
