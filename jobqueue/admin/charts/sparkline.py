"""A chart as high as a line of text."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 96, 22


def sparkline(values: Sequence[float], *, label: str) -> SafeString:
    """The course of some values, from 0 up. `label` says what they are, for those who do not see them.

    Empty if there are fewer than two values.
    """
    if len(values) < 2:
        return SafeString("")
    top, step = max(max(values), 1e-9), (WIDTH - 2) / (len(values) - 1)
    points = " ".join(
        f"{1 + place * step:.1f},{HEIGHT - 2 - (HEIGHT - 4) * max(0.0, value) / top:.1f}"
        for place, value in enumerate(values)
    )
    return format_html(
        '<svg class="jobqueue-spark" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}"><polyline '
        'points="{}"/></svg>',
        label,
        WIDTH,
        HEIGHT,
        WIDTH,
        HEIGHT,
        points,
    )
