"""The share of runs that failed, as tables show it."""

from __future__ import annotations

from django.utils.html import format_html

from jobqueue.admin.page.formatting import NOTHING

#: from this share of failed runs on, a row or a figure is marked
HIGH_ERROR_RATE = 0.1


def is_high(rate: float | None) -> bool:
    """Whether this share of failed runs (0 to 1) is marked."""
    return (rate or 0) >= HIGH_ERROR_RATE


def marked(rate: float | None, text: str) -> str:
    """`text`, which tells the share, marked if the share is high; a dash if no run failed."""
    if not rate:
        return NOTHING
    return format_html('<strong class="jobqueue-high">{}</strong>', text) if is_high(rate) else text
