"""{% load jobqueue_lists %}: the cells of a list with the titles of their columns, which stand beside them in cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst

register = template.Library()


@register.simple_tag
def titled_cells(cells: Sequence[SafeString], headers: Sequence[Mapping[str, Any]]) -> SafeString:
    """Django's cells of a row, each with its column's title as data-title, except the box that selects the row."""
    return mark_safe("".join(_titled(cell, header) for cell, header in zip(cells, headers, strict=True)))


def _titled(cell: SafeString, header: Mapping[str, Any]) -> str:
    if 'class="action-checkbox"' in cell[:30] or not cell.startswith(("<td", "<th")):
        return cell
    # Django writes each cell as <td class="field-name"> or <th class="field-name">.
    start, end, rest = cell.partition(">")
    return format_html('{} data-title="{}"', mark_safe(start), capfirst(str(header["text"]))) + end + rest
