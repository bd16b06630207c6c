"""The words for an event's state: one vocabulary for list, filter and page."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.formatting import span

LABELS: dict[str, Any] = {
    "waiting": _("waiting"),
    "later": _("waiting, not yet due"),
    "leased": _("with a relay"),
    "dead_letter": _("dead letter"),
    "sent": _("sent"),
    "discarded": _("discarded"),
}
#: what the filter offers, as the rows tell it without the clock
CONDITIONS: dict[str, dict[str, bool]] = {
    "waiting": {"lane__isnull": False, "failed_at__isnull": True},
    "dead_letter": {"failed_at__isnull": False, "processed_at__isnull": True},
    "sent": {"processed_at__isnull": False, "failed_at__isnull": True},
    "discarded": {"failed_at__isnull": False, "processed_at__isnull": False},
}
#: what serves each of them: waiting ones by key or topic, the first one first; others by their end, the last one first
INDEXES = {
    "waiting": "ix_outbox_lane",
    "dead_letter": "ix_outbox_failed",
    "sent": "ix_outbox_processed",
    "discarded": "ix_outbox_failed",
}
ORDERS: dict[str, list[str]] = {
    "waiting": ["lane", "pk"],
    "dead_letter": ["-failed_at", "-pk"],
    "sent": ["-processed_at", "-pk"],
    "discarded": ["-failed_at", "-pk"],
}


class EventStateFilter(SimpleListFilter):
    """Waiting, dead letter, sent or discarded."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Those of LABELS that need no clock."""
        return [(name, LABELS[name]) for name in CONDITIONS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows in the chosen state."""
        value = self.value()
        if value is None:
            return queryset
        if value not in CONDITIONS:
            # An unknown state must not mean "all": the next click may be an action on what is listed.
            raise IncorrectLookupParameters
        return queryset.filter(**CONDITIONS[value])


def state_of(event: Any) -> str:
    """The key in LABELS for an event that was read with `now`."""
    if event.failed_at is not None:
        return "dead_letter" if event.processed_at is None else "discarded"
    if event.processed_at is not None:
        return "sent"
    if event.due_at is None or event.due_at <= event.now:
        return "waiting"
    return "later" if event.lock_token is None else "leased"


def blocks_key(event: Any) -> bool:
    """Whether it is a dead letter and later events of its key wait for it."""
    return state_of(event) == "dead_letter" and event.lane is not None


def words(event: Any) -> str:
    """The state, and whether the key waits."""
    text = str(LABELS[state_of(event)])
    return gettext("%(state)s, its key waits") % {"state": text} if blocks_key(event) else text


def what_next(event: Any) -> str:
    """What will happen to an event if nobody interferes."""
    state = state_of(event)
    if state == "sent":
        return gettext("Nothing: it was delivered. It is deleted when it is old enough.")
    if state == "discarded":
        return gettext("Nothing: it was discarded. It is deleted when it is old enough.")
    if state == "dead_letter":
        return _dead_letter(event)
    time = {"time": span((event.due_at - event.now).total_seconds())} if event.due_at else {}
    if state == "leased":
        return gettext("A relay has it for %(time)s more; if that falls silent, another one takes it.") % time
    if event.key is None:
        text = gettext("A relay delivers it.")
    else:
        text = gettext("A relay delivers it when all earlier events of its key are delivered.")
    return text if state == "waiting" else text + " " + gettext("Not before %(time)s from now.") % time


def _dead_letter(event: Any) -> str:
    if blocks_key(event):
        return gettext("Nothing, until somebody retries or discards it; later events of its key wait for that.")
    if event.key is not None:
        return gettext(
            "Nothing, until somebody retries or discards it. Later events of its key have gone on: retried, it "
            "may come after them."
        )
    return gettext("Nothing, until somebody retries or discards it.")
