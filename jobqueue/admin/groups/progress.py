"""How far a group has come, as a bar with its figures."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.translation import gettext

from jobqueue.admin.groups.counts import Counts
from jobqueue.admin.page.formatting import number

WIDTH, HEIGHT = 120, 8


def bar(counts: Counts) -> str:
    """Done, failed and canceled members as parts of all; hidden from those who read the figures beside it."""
    total = max(1, counts.total)
    parts, left = [], 0.0
    for kind, count in (("ok", counts.done), ("dead", counts.failed), ("canceled", counts.canceled)):
        width = WIDTH * count / total
        if count:
            parts.append(
                format_html(
                    '<rect class="jobqueue-c-{}" x="{}" y="0" width="{}" height="{}"/>',
                    kind,
                    f"{left:.1f}",
                    f"{max(1.0, width):.1f}",
                    HEIGHT,
                )
            )
        left += width
    frame = '<svg class="jobqueue-progress" width="{}" height="{}" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>'
    return format_html(frame, WIDTH, HEIGHT, WIDTH, HEIGHT, format_html("{}" * len(parts), *parts) if parts else "")


def words(counts: Counts) -> str:
    """Such as "80 of 100 done, 2 failed"."""
    more = "+" if counts.capped else ""
    facts = {"done": number(counts.done), "total": number(counts.total) + more}
    said = [gettext("%(done)s of %(total)s done") % facts]
    if counts.failed:
        said.append(gettext("%(n)s failed") % {"n": number(counts.failed)})
    if counts.canceled:
        said.append(gettext("%(n)s canceled") % {"n": number(counts.canceled)})
    return ", ".join(said)
