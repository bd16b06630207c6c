"""What events of the outbox wait for, and what happens to them next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.utils.translation import gettext, ngettext

from jobqueue.admin.outbox.states import blocks_key, state_of
from jobqueue.admin.page.formatting import span
from jobqueue.conf import load
from jobqueue.outbox import statements, unrouted
from jobqueue.outbox.statements import NO_DESTINATION
from jobqueue.outbox.unrouted import Unrouted, ids_of

if TYPE_CHECKING:
    from jobqueue.admin.outbox.states import ShownEvent

#: lanes that are read for the warning above the list
LANES_MAX = 200


def unrouted_words() -> str:
    """Which topics have no route and no subscriber, with the events that wait; "" if relays found none."""
    found = unrouted.find(using=load().database, limit=LANES_MAX)
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
    return f"{unrouted.COUNT_MAX}+" if len(ids) > unrouted.COUNT_MAX else str(len(ids))


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
    later = unrouted.after(event.lane, event.pk, using=load().database)
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
