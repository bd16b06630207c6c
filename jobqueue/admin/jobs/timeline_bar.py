"""The bar of a timeline as SVG: runs are thick, waiting is thin. The list beside it says the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.utils.html import format_html, format_html_join

HEIGHT, THIN = 22, 4
#: the smallest share of the width, so that each part is seen
LEAST = {"wait": 0.006, "later": 0.02}
LEAST_OF_A_RUN = 0.014
#: kinds that are hatched, so that they read without colours
_HATCHED = ("failed", "lost")
_FRAME = (
    '<svg class="jobqueue-bar" width="100%" height="{}" aria-hidden="true"><defs><pattern id="jobqueue-bar-hatch" '
    'width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="jobqueue-bar-line" '
    'x1="0" y1="0" x2="0" y2="6"/></pattern></defs>{}</svg>'
)
_PART = '<g><title>{}</title><rect class="jobqueue-bar-{}" x="{}" y="{}" width="{}" height="{}"/>{}</g>'
_HATCH = '<rect fill="url(#jobqueue-bar-hatch)" x="{}" y="{}" width="{}" height="{}"/>'


class Segment(NamedTuple):
    """A part of the bar."""

    kind: str
    seconds: float
    hint: str


def draw(segments: Sequence[Segment]) -> str:
    """The bar; "" if nothing lasted."""
    return format_html(_FRAME, HEIGHT, format_html_join("", "{}", _parts(segments))) if segments else ""


def _parts(segments: Sequence[Segment]) -> Iterator[tuple[str]]:
    left = 0.0
    for segment, share in zip(segments, _shares(segments), strict=True):
        height = THIN if segment.kind in LEAST else HEIGHT
        place = (f"{100 * left:.2f}%", f"{(HEIGHT - height) / 2:g}", f"{100 * share:.2f}%", height)
        hatch = format_html(_HATCH, *place) if segment.kind in _HATCHED else ""
        yield (format_html(_PART, segment.hint, segment.kind, *place, hatch),)
        left += share


def _shares(segments: Sequence[Segment]) -> list[float]:
    """The share of the width that each part gets: by its time, but at least what a reader can see."""
    total = sum(segment.seconds for segment in segments) or 1.0
    wanted = [max(one.seconds / total, LEAST.get(one.kind, LEAST_OF_A_RUN)) for one in segments]
    return [one / sum(wanted) for one in wanted]
