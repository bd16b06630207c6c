"""The records of single verbs, those of Django's history: who did what to which row, newest first."""

from __future__ import annotations

from typing import NamedTuple

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils.translation import gettext

from jobqueue.admin.page.cells import Column, Table, table_of
from jobqueue.admin.page.formatting import NOTHING, job_link, plain, stamp
from jobqueue.admin.page.history import NAME_CHARS
from jobqueue.models import Job


class Records(NamedTuple):
    """A page of records. `older`: the id below which the next page begins; None: there is none."""

    table: Table
    older: int | None


def records(most: int, *, before: int | None = None) -> Records:
    """The newest `most` records, of those with an id below `before`."""
    kinds = {kind.pk: kind.model for kind in ContentType.objects.filter(app_label="jobqueue")}
    rows = LogEntry.objects.filter(content_type_id__in=[*kinds]).select_related("user").order_by("-pk")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    # One more than is shown says whether there are more.
    found = list(rows[: most + 1])
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
    return Records(table, shown[-1].pk if len(found) > most else None)


def _row(entry: LogEntry, model: str) -> str:
    number = entry.object_id or ""
    if model == Job._meta.model_name and number.isascii() and number.isdigit() and len(number) < 19:
        return job_link(int(number))
    return plain(entry.object_repr, NAME_CHARS)
