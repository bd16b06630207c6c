"""The list of outbox events, and the page of an event: what it waits for, and what happens to it next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import Model, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import id_of
from jobqueue.admin.page.formatting import (
    NOTHING,
    StrOrPromise,
    badge,
    block,
    error_line,
    error_tail,
    json_of,
    key_of,
    moment_of,
    name_of,
    relative,
    span,
)
from jobqueue.admin.page.readonly import ConditionFilter, Facts
from jobqueue.admin.page.verb_admin import VerbAdmin, VerbList, apply
from jobqueue.base.validation import KEY_BYTES
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.models import OutboxEvent
from jobqueue.outbox import operator, routes, statements
from jobqueue.outbox.routes import Unrouted, ids_of
from jobqueue.outbox.statements import NO_DESTINATION, key_lane

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownEvent = WithAnnotations[OutboxEvent, Facts]
else:
    ShownEvent = OutboxEvent

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


#: lanes that are read for the warning above the list
LANES_MAX = 200


def unrouted_words() -> str:
    """Which topics have no route and no subscriber, with the events that wait; "" if relays found none."""
    found = routes.find_unrouted(using=load().database, limit=LANES_MAX)
    if not found:
        return ""
    return (
        gettext("No route and no subscriber: %(topics)s.") % {"topics": "; ".join(map(_topic_words, found))}
        + " "
        + gettext("Add a subscriber to <app>/tasks.py, route the topic in the settings, or skip the events.")
    )


def _topic_words(found: Unrouted) -> str:
    words = {"topic": found.topic, "n": _number(found.ids), "ids": ids_of(found.ids)}
    if not found.behind:
        return gettext("%(topic)s: %(n)s waiting (%(ids)s)") % words
    words |= {"later": _number(found.behind), "later_ids": ids_of(found.behind)}
    return gettext("%(topic)s: %(n)s waiting (%(ids)s) and behind them, by key, %(later)s (%(later_ids)s)") % words


def _number(ids: Sequence[int]) -> str:
    return f"{routes.COUNT_MAX}+" if len(ids) > routes.COUNT_MAX else str(len(ids))


def was_unrouted(event: ShownEvent) -> bool:
    """Whether the event was delivered after it had waited for a route or a subscriber."""
    text: str = (event.error_tail if hasattr(event, "error_tail") else event.last_error) or ""
    return state_of(event) == "sent" and text.startswith(NO_DESTINATION)


def what_next(event: ShownEvent) -> str:
    """A sentence on what happens to an event next if nobody changes it."""
    state = state_of(event)
    if state == "sent":
        return gettext("Nothing: it was delivered. It is deleted after the retention time.")
    if state == "discarded":
        return gettext("Nothing: it was discarded. It is deleted after the retention time.")
    if state == "dead_letter":
        return _dead_letter(event)
    time = {"time": span((event.due_at - event.now).total_seconds())} if event.due_at else {}
    if state == "unrouted":
        return _unrouted(event)
    if state == "leased":
        return gettext("A relay is delivering it. If that relay stops, another one takes it in %(time)s.") % time
    if event.key is None:
        text = gettext("A relay delivers it.")
    else:
        text = gettext("A relay delivers it when all earlier events of its key are delivered.")
        for front in front_of([event]).values():
            text += " " + gettext("It waits for event %(id)d, which needs your help.") % {"id": front}
    return text if state == "waiting" else text + " " + gettext("Not before %(time)s from now.") % time


def _unrouted(event: ShownEvent) -> str:
    text = gettext(
        "A relay tries it again every minute, but found no route and no subscriber for its topic. Add a subscriber to "
        "<app>/tasks.py, route the topic in the settings, or skip the event."
    )
    assert event.lane is not None
    later = routes.waiting_after(event.lane, event.pk, using=load().database)
    if event.key is None or not later:
        return text
    return (
        text
        + " "
        + ngettext(
            "%(n)s later event of its key waits behind it: %(ids)s.",
            "%(n)s later events of its key wait behind it: %(ids)s.",
            len(later),
        )
        % {"n": _number(later), "ids": ids_of(later)}
    )


def front_of(events: Sequence[ShownEvent]) -> dict[int, int]:
    """By id of each event with a key that waits: the event of its key for which it waits, if that one is stuck.

    One statement, with an index seek for each key.
    """
    waiting = {event.pk: event.lane for event in events if event.lane is not None and event.key is not None}
    runs = [{"lane": lane} for lane in sorted(set(waiting.values()))]
    rows = statements.first(load().database).rows_of_each(runs) if runs else []
    stuck = {lane: event_id for event_id, lane, is_stuck in rows if is_stuck}
    return {pk: stuck[lane] for pk, lane in waiting.items() if stuck.get(lane, pk) != pk}


def _dead_letter(event: ShownEvent) -> str:
    if blocks_key(event):
        return gettext("Nothing, until it is retried or discarded. Later events of its key wait for that.")
    if event.key is not None:
        return gettext(
            "Nothing, until it is retried or discarded. Later events of its key do not wait, so a retry may deliver it "
            "after them."
        )
    return gettext("Nothing, until it is retried or discarded.")


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


_RETRIED = ngettext_lazy("%(n)d event will be delivered again.", "%(n)d events will be delivered again.", "n")
_DISCARDED = ngettext_lazy(
    "%(n)d event was discarded and will not be delivered.",
    "%(n)d events were discarded and will not be delivered.",
    "n",
)
_SKIPPED = ngettext_lazy(
    "%(n)d event is a dead letter now, for which no other waits.",
    "%(n)d events are dead letters now, for which no others wait.",
    "n",
)


@admin.action(description=_("Retry dead letters"), permissions=["retry"])
def retry(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Deliver dead letters again, with new attempts."""
    apply(model_admin, request, queryset, "retry", operator.retry, _RETRIED, allowed=("dead_letter",))


@admin.action(description=_("Discard dead letters (never delivered)"), permissions=["discard"])
def discard(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Never deliver these dead letters; later events of their keys no longer wait for them."""
    verb = partial(operator.discard, reason=request.POST.get("reason", "").strip())
    apply(model_admin, request, queryset, "discard", verb, _DISCARDED, allowed=("dead_letter",))


@admin.action(description=_("Skip (later events of its key go on without it)"), permissions=["discard"])
def skip(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Make dead letters of events without a route and a subscriber, for which others wait no longer."""
    apply(model_admin, request, queryset, "skip", operator.skip, _SKIPPED, allowed=("unrouted", "dead_letter"))


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
    list_class = EventList
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

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """The event with this id, else the waiting ones of this key; other events have no index on it."""
        number, key = id_of(term), term.encode("utf-8", "replace")
        if number is not None and (by_id := rows.filter(pk=number)).exists():
            return by_id
        return rows.filter(lane=key_lane(key), key=key) if len(key) <= KEY_BYTES else rows.none()

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
            every = every.annotate(error_tail=error_tail())
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
        return NOTHING if was_unrouted(event) else error_line(event.error_tail) or NOTHING

    @admin.display(description=_("last error"))
    def error_text(self, event: ShownEvent) -> str:
        return block(event.last_error) if event.last_error and not was_unrouted(event) else NOTHING

    @admin.display(description=_("what happens next"))
    def next(self, event: ShownEvent) -> str:
        return what_next(event)
