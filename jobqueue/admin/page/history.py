"""Django's history: who did what to which row."""

from __future__ import annotations

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from jobqueue.admin.page.formatting import plain, stamp

RECENT, NAME_CHARS = 10, 200
#: the newest entries of all rows that are looked at: no index leads to those of one row
LOOKED_AT = 10_000


def log_entry(
    request: HttpRequest, model: type[Model], row_id: object, name: str, flag: int, what: str = ""
) -> LogEntry:
    """An entry, not yet written, that this user did `what` to a row."""
    return LogEntry(
        user_id=request.user.pk or 0,
        content_type_id=_kind(model),
        object_id=str(row_id),
        object_repr=name[:NAME_CHARS],
        action_flag=flag,
        change_message=what,
    )


def recent(model: type[Model], row_id: object) -> list[tuple[str, str, str]]:
    """When, who and what, of the last RECENT changes of a row among the newest LOOKED_AT changes."""
    rows = among_newest(LogEntry.objects.filter(content_type_id=_kind(model), object_id=str(row_id)))
    return [
        (stamp(row.action_time), plain(row.user.get_username()), plain(row.get_change_message(), NAME_CHARS))
        for row in rows.select_related("user").order_by("-pk")[:RECENT]
    ]


def among_newest(entries: QuerySet[LogEntry]) -> QuerySet[LogEntry]:
    """Those of `entries` among the newest LOOKED_AT of all rows."""
    # As a number: planners do not know that a subquery gives few ids, and read all entries of a model instead.
    newest = LogEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    return entries.filter(pk__gt=newest - LOOKED_AT)


def _kind(model: type[Model]) -> int:
    return int(ContentType.objects.get_for_model(model, for_concrete_model=False).pk)
