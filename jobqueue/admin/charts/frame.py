"""What all charts have: a caption with a legend, axes, and the same figures as a table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from jobqueue.admin.charts.scales import Scale, time_ticks
from jobqueue.admin.page.formatting import plain, span

#: pixels of the part with the values, of the space above it, and of the whole with the labels of the time axis
PLOT_HEIGHT, ABOVE, HEIGHT = 170, 8, 202
#: pixels between the labels of the value axis and the values; charts.css leaves room for the labels
GAP = 6
#: the kinds that charts.css has colours, patterns and dashes for
KINDS = ("ok", "retried", "dead", "canceled", "ready", "running", "p50", "p95")
SECONDS = "s"


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one thing, one for each instant of the chart; None where there is none. `kind` is one of KINDS."""

    name: str
    kind: str
    values: Sequence[float | None]


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
    if not any(value for one in series for value in one.values):
        caption, said = _caption(title, (), unit, mark, key), nothing or gettext("Nothing ended in this time.")
        return format_html('<figure class="jobqueue-chart">{}<p class="jobqueue-note">{}</p></figure>', caption, said)
    inside, scale = draw(key)
    return format_html(
        '<figure class="jobqueue-chart">{}<div class="jobqueue-plot"><svg class="jobqueue-svg" role="img" '
        'aria-labelledby="{}" width="100%" height="{}"><title id="{}">{}</title><g transform="translate(0,{})">{}{}{}'
        "{}</g></svg></div>{}</figure>",
        _caption(title, series, unit, mark, key),
        f"{key}-title",
        HEIGHT,
        f"{key}-title",
        _summary(title, series, unit),
        ABOVE,
        _grid(scale),
        inside,
        _value_axis(scale, unit),
        _time_axis(instants),
        _table(instants, series, unit),
    )


def _caption(title: str, series: Sequence[Series], unit: str, mark: str, key: str) -> str:
    of_unit = "" if unit == SECONDS else format_html(' <span class="jobqueue-unit">{}</span>', unit)
    keys = format_html_join(
        "",
        '<li><svg class="jobqueue-key" width="22" height="10" aria-hidden="true">{}</svg>{}</li>',
        ((format_html(mark, kind=_kind(one), key=key), plain(one.name)) for one in series),
    )
    legend = format_html('<ul class="jobqueue-legend">{}</ul>', keys) if keys else ""
    return format_html("<figcaption><strong>{}</strong>{}{}</figcaption>", title, of_unit, legend)


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


def _grid(scale: Scale) -> str:
    heights = ((f"{PLOT_HEIGHT * (1 - scale.height(tick)):.1f}",) for tick in scale.ticks)
    return format_html_join("", '<line class="jobqueue-grid" x1="0" x2="100%" y1="{0}" y2="{0}"/>', heights)


def _value_axis(scale: Scale, unit: str) -> str:
    heights = ((tick, PLOT_HEIGHT * (1 - scale.height(tick))) for tick in scale.ticks)
    return format_html_join(
        "",
        '<text class="jobqueue-tick" x="{}" y="{}" text-anchor="end">{}</text>',
        ((-GAP, f"{y + 4:.1f}", value_text(tick, unit)) for tick, y in heights),
    )


def _time_axis(instants: Sequence[datetime]) -> str:
    begins, ends = instants[0], instants[-1] + (instants[-1] - instants[0]) / max(1, len(instants) - 1)
    length = (ends - begins).total_seconds() or 1.0
    ticks = time_ticks(begins, ends, timezone.get_current_timezone())
    shares = [((instant - begins).total_seconds() / length, label) for instant, label in ticks]
    return format_html_join(
        "",
        '<text class="jobqueue-tick" x="{}" y="{}" text-anchor="{}">{}</text>',
        (
            (percent(share), PLOT_HEIGHT + 17, "start" if share < 0.04 else "end" if share > 0.96 else "middle", label)
            for share, label in shares
        ),
    )


def _table(instants: Sequence[datetime], series: Sequence[Series], unit: str) -> str:
    head = format_html_join("", '<th scope="col">{}</th>', ((plain(one.name),) for one in series))
    template = f'<tr><th scope="row">{{}}</th>{"<td>{}</td>" * len(series)}</tr>'
    body = format_html_join(
        "", template, (_row(place, instant, series, unit) for place, instant in enumerate(instants))
    )
    return format_html(
        '<details class="jobqueue-chart-data"><summary>{}</summary><div class="jobqueue-wide"><table '
        'class="jobqueue-figures"><thead><tr><th scope="col">{}</th>{}</tr></thead><tbody>{}</tbody></table></div>'
        "</details>",
        gettext("The figures as a table"),
        gettext("time (%(zone)s)") % {"zone": timezone.get_current_timezone_name()},
        head,
        body,
    )


def _row(place: int, instant: datetime, series: Sequence[Series], unit: str) -> tuple[str, ...]:
    cells = ("-" if (value := one.values[place]) is None else value_text(value, unit) for one in series)
    return instant_text(instant), *cells
