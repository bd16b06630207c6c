"""A chart of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobqueue.admin.charts.frame import PLOT_HEIGHT, Series, figure, instant_text, percent, value_text
from jobqueue.admin.charts.scales import Scale, linear, logarithmic
from jobqueue.admin.page.formatting import plain

#: the width in which lines are drawn; they are stretched to that of the page
_WIDTH = 1000
_MARK = '<line class="jobqueue-l-{kind}" x1="0" y1="5" x2="22" y2="5"/>'


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
    return figure(title, instants, series, unit, partial(_draw, instants, series, unit, log), _MARK, nothing)


def _draw(instants: Sequence[datetime], series: Sequence[Series], unit: str, log: bool, key: str) -> tuple[str, Scale]:
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
            (percent(place * width), percent(width), PLOT_HEIGHT, _hint(place, instant, series, unit))
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


def _hint(place: int, instant: datetime, series: Sequence[Series], unit: str) -> str:
    named = (
        f"{plain(one.name)} {value_text(value, unit)}" for one in series if (value := one.values[place]) is not None
    )
    return f"{instant_text(instant)}: {', '.join(named) or '-'}"
