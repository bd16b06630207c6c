"""The outbox in the admin: what waits, what was sent, and what somebody must look at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ActionForm
from django.db.models import QuerySet
from django.db.models.functions import Right
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobqueue.admin.actions import apply
from jobqueue.admin.formatting import NOTHING, badge, block, label, last_line, moment, plain, pretty, relative
from jobqueue.admin.outbox_states import INDEXES, ORDERS, EventStateFilter, blocks_key, state_of, what_next, words
from jobqueue.admin.readonly import NewestFirst
from jobqueue.admin.verb_admin import VerbAdmin
from jobqueue.db import vendor
from jobqueue.models import OutboxEvent
from jobqueue.outbox import discard as discard_event
from jobqueue.outbox import retry as retry_event
from jobqueue.outbox.lanes import key_lane
from jobqueue.validation import KEY_BYTES, readable_key

ERROR_TAIL_CHARS = 500
BADGES = {"waiting": "ready", "leased": "running", "later": "scheduled", "dead_letter": "failed", "sent": "done"}


class ReasonForm(ActionForm):
    """The bar of actions, with a line for the reason of a discard."""

    reason = forms.CharField(label=_("Reason:"), required=False, max_length=500)


@admin.action(description=_("Retry dead letters"), permissions=["retry"])
def retry(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """They are delivered again, with all their attempts."""
    apply(model_admin, request, queryset, "retry", retry_event, _events)


@admin.action(description=_("Discard dead letters (never delivered)"), permissions=["discard"])
def discard(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """They are never delivered, and their keys go on."""
    verb = partial(discard_event, reason=request.POST.get("reason", "").strip())
    apply(model_admin, request, queryset, "discard", verb, _events)


def _events(changed: int) -> str:
    return ngettext("%(n)d event changed.", "%(n)d events changed.", changed) % {"n": changed}


def _moment(field: str) -> Callable[[Any, Any], str]:
    @admin.display(description=label(OutboxEvent, field))
    def show(self: Any, event: Any) -> str:
        return moment(getattr(event, field), event.now)

    return show


class EventList(NewestFirst):
    """Without payloads and whole errors; the events of one state in the order of that state's index."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Whatever ?o= says."""
        return ORDERS.get(request.GET.get(EventStateFilter.parameter_name, ""), ["-pk"])

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """The columns of the list."""
        rows: Any = super().get_queryset(request, exclude_parameters).defer("payload", "last_error")
        slim: QuerySet[Any] = rows.annotate(error_tail=Right("last_error", ERROR_TAIL_CHARS))
        index = INDEXES.get(request.GET.get(EventStateFilter.parameter_name, ""))
        # A table of delivered events looks to optimizers as if it were quicker to read it from its end.
        return slim if index is None or self.query else vendor(slim.db).force_index(slim, index)


@admin.register(OutboxEvent)
class OutboxEventAdmin(VerbAdmin):
    """List and page of events."""

    list_display = ("id", "state", "topic_name", "key_text", "when", "attempts", "note")
    list_filter = (EventStateFilter,)
    actions = (retry, discard)
    action_form = ReasonForm
    search_fields = ("id",)
    search_help_text = _("Exact event id, or the key of events that wait")
    fieldsets = (
        (None, {"fields": ("state", "next", "topic_name", "key_text", "attempts", "error_text")}),
        (_("Times"), {"fields": ("created", "due", "processed", "failed")}),
    )
    content = (_("Payload"), {"fields": ("payload_json",)})
    content_columns = ("payload",)
    short = {"retry": _("Retry"), "discard": _("Discard")}
    created, due = _moment("created_at"), _moment("due_at")
    processed, failed = _moment("processed_at"), _moment("failed_at")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list's class."""
        return EventList

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """A number is an event's id; anything else a key, whose events have an index while they wait."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) < 19:
            by_id = queryset.filter(pk=int(term))
            if by_id.exists():
                return by_id, False
        key = term.encode("utf-8", "replace")
        if len(key) > KEY_BYTES:
            return queryset.none(), False
        return queryset.filter(lane=key_lane(key), key=key), False

    def verbs_for(self, row: Any) -> tuple[str, ...]:
        """Only dead letters can be retried or discarded."""
        return ("retry", "discard") if state_of(row) == "dead_letter" else ()

    def words_of(self, rows: QuerySet[Any]) -> list[tuple[int, str]]:
        """Each with its state."""
        states = rows.only("lane", "due_at", "lock_token", "processed_at", "failed_at")
        return [(event.pk, state_of(event)) for event in states]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        """A line for the reason, beside the button that asks for one."""
        context["reason_for"] = "discard"
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("state"))
    def state(self, event: Any) -> str:
        """One word, and whether the key waits."""
        return badge(BADGES.get(state_of(event), "canceled"), words(event))

    @admin.display(description=_("topic"))
    def topic_name(self, event: Any) -> str:
        """As it was published."""
        return plain(event.topic)

    @admin.display(description=_("key"))
    def key_text(self, event: Any) -> str:
        """As text where it is text."""
        return plain(readable_key(event.key)) if event.key else NOTHING

    @admin.display(description=_("when"))
    def when(self, event: Any) -> str:
        """How far the instant that matters in this state."""
        waits = None if blocks_key(event) else event.due_at
        return relative(event.processed_at or event.failed_at or waits or event.created_at, event.now)

    @admin.display(description=_("last error"))
    def note(self, event: Any) -> str:
        """Its last line."""
        return last_line(event.error_tail)

    @admin.display(description=_("last error"))
    def error_text(self, event: Any) -> str:
        """The whole."""
        return block(event.last_error) if event.last_error else NOTHING

    @admin.display(description=_("payload"))
    def payload_json(self, event: Any) -> str:
        """Indented JSON."""
        return pretty(event.payload)

    @admin.display(description=_("what happens next"))
    def next(self, event: Any) -> str:
        """One sentence."""
        return what_next(event)
