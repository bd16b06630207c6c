"""The state of an event as pages show it, and the filter for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.readonly import ConditionFilter, Facts
from jobqueue.models import OutboxEvent
from jobqueue.outbox.statements import NO_DESTINATION

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise, WithAnnotations

    ShownEvent = WithAnnotations[OutboxEvent, Facts]

LABELS: dict[str, StrOrPromise] = {
    "waiting": _("waiting"),
    "later": _("waiting, not yet due"),
    "unrouted": _("waiting, no route and no subscriber"),
    "leased": _("leased by a relay"),
    "dead_letter": _("dead letter"),
    "sent": _("sent"),
    "discarded": _("discarded"),
}
#: the choices of the filter: the states that do not depend on the clock
CONDITIONS: dict[str, dict[str, bool]] = {
    "waiting": {"lane__isnull": False, "failed_at__isnull": True},
    "dead_letter": {"failed_at__isnull": False, "processed_at__isnull": True},
    "sent": {"processed_at__isnull": False, "failed_at__isnull": True},
    "discarded": {"failed_at__isnull": False, "processed_at__isnull": False},
}
#: state -> the index that serves its list, and its order: of delivery for waiting events, else of the end
LISTS: dict[str, tuple[str, list[str]]] = {
    "waiting": ("ix_outbox_lane", ["lane", "pk"]),
    "dead_letter": ("ix_outbox_failed", ["-failed_at", "-pk"]),
    "sent": ("ix_outbox_processed", ["-processed_at", "-pk"]),
    "discarded": ("ix_outbox_failed", ["-failed_at", "-pk"]),
}


class EventStateFilter(ConditionFilter):
    """Waiting, dead letter, sent or discarded."""

    labels = LABELS
    conditions = CONDITIONS


def state_of(event: ShownEvent) -> str:
    """The key in LABELS of an event."""
    if event.failed_at is not None:
        return "dead_letter" if event.processed_at is None else "discarded"
    if event.processed_at is not None:
        return "sent"
    if event.due_at is None or event.due_at <= event.now:
        return "unrouted" if is_unrouted(event) and event.lock_token is None else "waiting"
    if event.lock_token is not None:
        return "leased"
    return "unrouted" if is_unrouted(event) else "later"


def is_unrouted(event: ShownEvent) -> bool:
    """Whether the event waits, and the last relay that had it found no route and no subscriber."""
    text: str = (event.error_tail if hasattr(event, "error_tail") else event.last_error) or ""
    return event.lane is not None and event.failed_at is None and text.startswith(NO_DESTINATION)


def blocks_key(event: ShownEvent) -> bool:
    """Whether the event is a dead letter for which later events of its key wait."""
    return state_of(event) == "dead_letter" and event.lane is not None


def state_label(event: ShownEvent) -> str:
    """The state, and whether the event blocks its key."""
    text = str(LABELS[state_of(event)])
    return gettext("%(state)s, blocks its key") % {"state": text} if blocks_key(event) else text
