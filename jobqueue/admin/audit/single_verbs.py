"""The records of single verbs, those of Django's history: who did what to which row, newest first."""

from __future__ import annotations

from typing import NamedTuple

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils.translation import gettext

from jobqueue.admin.page.formatting import NOTHING, job_link, plain, stamp
from jobqueue.admin.page.history import NAME_CHARS
from jobqueue.admin.page.tables import Column, Table, table_of
from jobqueue.models import Job

#: entries of one read, and reads of one page
WINDOW, WINDOWS_MAX = 10_000, 5


class Records(NamedTuple):
    """A page of records. `older`: the id below which the next page begins; None: there is none."""

    table: Table
    older: int | None


def records(most: int, *, before: int | None = None) -> Records:
    """The newest `most` records, of those with an id below `before`."""
    kinds = {kind.pk: kind.model for kind in ContentType.objects.filter(app_label="jobqueue")}
    found, below = _newest([*kinds], most + 1, before)
    # One more than is shown says whether there are more.
    shown = found[:most]
    columns = (Column(gettext("when")), Column(gettext("user")), Column(gettext("row")), Column(gettext("what")))
    table = table_of(
        columns,
        [
            (
                stamp(row.action_time),
                plain(row.user.get_username(), NAME_CHARS),
                _row(row, kinds.get(row.content_type_id or 0, "")),
                plain(row.get_change_message(), NAME_CHARS) or NOTHING,
            )
            for row in shown
        ],
    )
    return Records(table, shown[-1].pk if len(found) > most else below)


def _newest(kinds: list[int], most: int, before: int | None) -> tuple[list[LogEntry], int | None]:
    """Up to `most` entries of these models below the id `before`; and the id below which others may be, if not all
    were looked at.

    By ranges of the primary key: no index has the entries of some models in order, and those of other apps may be many.
    """
    found: list[LogEntry] = []
    rows = LogEntry.objects.order_by("-pk")
    for turn in range(WINDOWS_MAX + 1):
        top = (rows if before is None else rows.filter(pk__lt=before)).values_list("pk", flat=True).first()
        if top is None:
            return found, None
        if turn == WINDOWS_MAX:
            break
        window = rows.filter(pk__lte=top, pk__gt=top - WINDOW, content_type_id__in=kinds).select_related("user")
        found += window[: most - len(found)]
        if len(found) == most:
            return found, None
        before = top - WINDOW + 1
    return found, before


def _row(entry: LogEntry, model: str) -> str:
    number = entry.object_id or ""
    if model == Job._meta.model_name and number.isascii() and number.isdigit() and len(number) < 19:
        return job_link(int(number))
    return plain(entry.object_repr, NAME_CHARS)
