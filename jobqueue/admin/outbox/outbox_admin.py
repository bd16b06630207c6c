"""The list of outbox events and the page of an event."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import Model, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Right
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.outbox.states import LABELS, LISTS, EventStateFilter, blocks_key, state_label, state_of
from jobqueue.admin.outbox.waits import front_of, unrouted_words, was_unrouted, what_next
from jobqueue.admin.page.apply import Changed, apply
from jobqueue.admin.page.formatting import (
    NOTHING,
    badge,
    block,
    json_of,
    key_of,
    last_line,
    moment_of,
    name_of,
    relative,
)
from jobqueue.admin.page.verb_admin import ERROR_TAIL_CHARS, VerbAdmin, VerbList
from jobqueue.db import vendor
from jobqueue.masking import mask_tail
from jobqueue.models import OutboxEvent
from jobqueue.outbox import operator
from jobqueue.outbox.lanes import key_lane

if TYPE_CHECKING:
    from jobqueue.admin.outbox.states import ShownEvent

BADGES = {
    "waiting": "ready",
    "unrouted": "failed",
    "leased": "running",
    "later": "scheduled",
    "dead_letter": "failed",
    "sent": "done",
}


class ReasonForm(ActionForm):
    """The form of the actions, with a field for the reason of a discard."""

    reason = forms.CharField(label=_("Reason:"), required=False, max_length=500)


@admin.action(description=_("Retry dead letters"), permissions=["retry"])
def retry(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Deliver dead letters again, with new attempts."""
    apply(model_admin, request, queryset, "retry", operator.retry, _retried, allowed=("dead_letter",))


@admin.action(description=_("Discard dead letters (never delivered)"), permissions=["discard"])
def discard(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Never deliver these dead letters; later events of their keys no longer wait for them."""
    verb = partial(operator.discard, reason=request.POST.get("reason", "").strip())
    apply(model_admin, request, queryset, "discard", verb, _discarded, allowed=("dead_letter",))


@admin.action(description=_("Skip (later events of its key go on without it)"), permissions=["discard"])
def skip(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Make dead letters of events without a route and a subscriber, for which others wait no longer."""
    apply(model_admin, request, queryset, "skip", operator.skip, _skipped, allowed=("unrouted", "dead_letter"))


def _retried(changed: Changed) -> Iterator[str]:
    yield ngettext("%(n)d event will be delivered again.", "%(n)d events will be delivered again.", len(changed)) % {
        "n": len(changed)
    }


def _discarded(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d event was discarded and will not be delivered.",
        "%(n)d events were discarded and will not be delivered.",
        len(changed),
    ) % {"n": len(changed)}


def _skipped(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d event is a dead letter now, for which no other waits.",
        "%(n)d events are dead letters now, for which no others wait.",
        len(changed),
    ) % {"n": len(changed)}


def _list_of(request: HttpRequest) -> tuple[str | None, list[str]]:
    return LISTS.get(request.GET.get(EventStateFilter.parameter_name, ""), (None, ["-pk"]))


class EventList(VerbList):
    """The events of one state in the order of the index for that state."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        _, order = _list_of(request)
        return [*order]

    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> QuerySet[Model]:
        rows = super().get_queryset(request, exclude_parameters)
        index, _ = _list_of(request)
        # Where most events are delivered, optimizers prefer to read the table from its end.
        return rows if index is None or self.query else vendor(rows.db).force_index(rows, index)

    def get_results(self, request: HttpRequest) -> None:
        """Say above the list which topics have no route and no subscriber, and in it which events wait for theirs."""
        super().get_results(request)
        if not (stuck := unrouted_words()):
            return
        if request.method == "GET":
            messages.warning(request, stuck)
        events: Any = self.result_list
        fronts = front_of(events)
        for event in events:
            event.front = fronts.get(event.pk)


@admin.register(OutboxEvent)
class OutboxEventAdmin(VerbAdmin):
    """Events; the list does not read payloads and whole errors."""

    list_display = ("id", "state", "topic_name", "key_text", "when", "attempts", "note")
    list_defer = ("payload", "last_error")
    list_filter = (EventStateFilter,)
    actions = (retry, discard, skip)
    action_form = ReasonForm
    search_fields = ("id",)
    search_help_text = _("Exact event id, or the key of waiting events")
    fieldsets = (
        (None, {"fields": ("state", "next", "topic_name", "key_text", "attempts", "error_text")}),
        (_("Times"), {"fields": ("created", "due", "processed", "failed")}),
    )
    content = (_("Payload"), {"fields": ("payload_json",)})
    content_columns = ("payload",)
    state_words = LABELS
    button_labels = {"retry": _("Retry"), "discard": _("Discard"), "skip": _("Skip")}
    created, due = moment_of(OutboxEvent, "created_at"), moment_of(OutboxEvent, "due_at")
    processed, failed = moment_of(OutboxEvent, "processed_at"), moment_of(OutboxEvent, "failed_at")
    topic_name, key_text = name_of(OutboxEvent, "topic"), key_of(OutboxEvent, "key")
    payload_json = json_of(OutboxEvent, "payload")

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[VerbList]:
        return EventList

    def with_key(self, request: HttpRequest, rows: QuerySet[OutboxEvent], key: bytes) -> QuerySet[OutboxEvent]:
        """The waiting events of this key; other events have no index on it."""
        return rows.filter(lane=key_lane(key), key=key)

    def label_of(self, row: OutboxEvent) -> str:
        return str(row.topic)

    def verbs_for(self, row: ShownEvent) -> tuple[str, ...]:
        """Retry and discard for dead letters, skip for events without a route and a subscriber."""
        return {"dead_letter": ("retry", "discard"), "unrouted": ("skip",)}.get(state_of(row), ())

    def unchanged(self, name: str, count: int) -> str:
        """A dead letter may be one for which no event waits: nothing to skip."""
        if name != "skip":
            return super().unchanged(name, count)
        return ngettext(
            "%(n)d was not changed: no later event waits for it, or its state has just changed.",
            "%(n)d were not changed: no later events wait for them, or their states have just changed.",
            count,
        ) % {"n": count}

    def states_of(self, rows: QuerySet[ShownEvent]) -> list[tuple[int, str]]:
        every: QuerySet[Any] = rows
        if "error_tail" not in rows.query.annotations:
            every = every.annotate(error_tail=Right("last_error", ERROR_TAIL_CHARS))
        states = every.only("lane", "due_at", "lock_token", "processed_at", "failed_at")
        return [(event.pk, state_of(event)) for event in states]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show a field for the reason beside the button of a discard."""
        context["reason_for"] = "discard"
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("state"))
    def state(self, event: ShownEvent) -> str:
        """The state, and whether the event blocks its key."""
        return badge(BADGES.get(state_of(event), "canceled"), state_label(event))

    @admin.display(description=_("when"))
    def when(self, event: ShownEvent) -> str:
        """The time to or since the instant that matters in this state."""
        waits = None if blocks_key(event) else event.due_at
        return relative(event.processed_at or event.failed_at or waits or event.created_at, event.now)

    @admin.display(description=_("last error"))
    def note(self, event: ShownEvent) -> str:
        if (front := getattr(event, "front", None)) is not None:
            return gettext("waits for event %(id)d") % {"id": front}
        return NOTHING if was_unrouted(event) else last_line(mask_tail(event.error_tail or "", ERROR_TAIL_CHARS))

    @admin.display(description=_("last error"))
    def error_text(self, event: ShownEvent) -> str:
        return block(event.last_error) if event.last_error and not was_unrouted(event) else NOTHING

    @admin.display(description=_("what happens next"))
    def next(self, event: ShownEvent) -> str:
        return what_next(event)
