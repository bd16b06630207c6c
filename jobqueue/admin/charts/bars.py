"""A chart of stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from jobqueue.admin.charts.frame import PLOT_HEIGHT, Series, figure, instant_text, percent, value_text
from jobqueue.admin.charts.scales import Scale, linear
from jobqueue.admin.page.formatting import plain

#: the part of its place that a bar fills
_FILLED = 0.8
_MARK = '<rect fill="url(#{key}-{kind})" width="22" height="10"/>'
#: the hatching of each kind, so that bars read without colours: the distance of its lines, and their angle
_HATCHES = {"retried": (6, 45), "dead": (4, 135), "canceled": (8, 90), "running": (8, 0)}


def bars(title: str, instants: Sequence[datetime], series: Sequence[Series], *, unit: str) -> SafeString:
    """One bar for each instant, in which the series stand on each other, the first at the bottom.

    `instants`: aware, in order, equally far apart, at least one. `unit`: of the values, as "jobs/min"; "s" writes them
    as durations. The title and the names of the series must be in the active language. Raises ValueError for a series
    of an unknown kind.
    """
    return figure(title, instants, series, unit, partial(_draw, instants, series, unit), _MARK)


def _draw(instants: Sequence[datetime], series: Sequence[Series], unit: str, key: str) -> tuple[str, Scale]:
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
    hint = _hint(place, instant, series, unit)
    space = '<g>{}<rect class="jobqueue-hover" x="{}" width="{}" y="0" height="{}"><title>{}</title></rect></g>'
    return format_html(space, drawn, percent(place * width), percent(width), PLOT_HEIGHT, hint)


def _hint(place: int, instant: datetime, series: Sequence[Series], unit: str) -> str:
    named = (f"{plain(one.name)} {value_text(one.values[place] or 0, unit)}" for one in series)
    return f"{instant_text(instant)}: {', '.join(named)}"
