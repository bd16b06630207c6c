"""What operators do with dead letters: events that used up their attempts."""

from __future__ import annotations

from collections.abc import Mapping

from django.db.models import QuerySet

from jobqueue.base.validation import check_id
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_reporting, retry_transient
from jobqueue.failures import storable
from jobqueue.models import OutboxEvent
from jobqueue.outbox.statements import NO_DESTINATION, key_lane, topic_lane

REASON_BYTES = 1000


def dead_letters(using: str | None = None) -> QuerySet[OutboxEvent]:
    """Dead letters, the oldest first, without discarded ones. Those with a lane block their key."""
    events: QuerySet[OutboxEvent] = OutboxEvent.objects.using(alias_of(using))
    return events.filter(failed_at__isnull=False, processed_at__isnull=True).order_by("failed_at")


def retry(event_id: int, *, using: str | None = None) -> bool:
    """Make a dead letter due again, with all its attempts; False if the event is none.

    With policy "skip", later events of its key may have gone before it.
    """
    event_id, alias = check_id(event_id, "an event id"), alias_of(using)
    event = _dead_letter(event_id, alias)
    if event is None:
        return False
    lane = topic_lane(event.topic) if event.key is None else key_lane(event.key)
    again = {"lane": lane, "due_at": UtcNow(), "failed_at": None, "attempts": 0}
    return _write(
        dead_letters(alias).filter(pk=event_id), again, _events(event_id, alias).filter(failed_at__isnull=True)
    )


def skip(event_id: int, *, using: str | None = None) -> bool:
    """Let the events that wait for an event go on without it. It is a dead letter then, which retry() delivers late.

    False if it is no dead letter that blocks its key, and does not wait for a route or a subscriber either.
    """
    event_id, alias = check_id(event_id, "an event id"), alias_of(using)
    skipped = dead_letters(alias).filter(pk=event_id, lane__isnull=True)
    blocking = dead_letters(alias).filter(pk=event_id, lane__isnull=False)
    # While a relay holds it, this is uncertain: the relay may have a subscriber.
    idle = _events(event_id, alias).filter(lane__isnull=False, failed_at__isnull=True, lock_token__isnull=True)
    unrouted = idle.filter(last_error__startswith=NO_DESTINATION)
    with explain_missing_table(alias):
        if blocking.exists():
            return _write(blocking, {"lane": None}, skipped)
        if unrouted.exists():
            return _write(unrouted, {"lane": None, "due_at": None, "failed_at": UtcNow()}, skipped)
    return False


def discard(event_id: int, reason: str = "", *, using: str | None = None) -> bool:
    """Discard a dead letter: it is never delivered, and its key goes on. False if the event is none.

    `reason` is added to the end of last_error. The row is deleted after RETENTION_SECONDS, like a delivered event's.
    """
    event_id, alias = check_id(event_id, "an event id"), alias_of(using)
    event = _dead_letter(event_id, alias)
    if event is None:
        return False
    last_error = storable(f"{event.last_error or ''}\nDiscarded: {storable(reason or 'no reason given', REASON_BYTES)}")
    gone = {"lane": None, "due_at": None, "processed_at": UtcNow(), "last_error": last_error}
    ended = _events(event_id, alias).filter(processed_at__isnull=False, last_error=last_error)
    return _write(dead_letters(alias).filter(pk=event_id), gone, ended)


def _dead_letter(event_id: int, using: str) -> OutboxEvent | None:
    with explain_missing_table(using):
        return dead_letters(using).filter(pk=event_id).first()


def _events(event_id: int, using: str) -> QuerySet[OutboxEvent]:
    return OutboxEvent.objects.using(using).filter(pk=event_id)


def _write(rows: QuerySet[OutboxEvent], changes: Mapping[str, object], written: QuerySet[OutboxEvent]) -> bool:
    """Return whether a row was changed. `written` finds the row after an earlier run whose answer was lost."""
    done, ran_again = retry_reporting("relay", lambda: rows.order_by().update(**changes), using=rows.db)
    return bool(done) or (ran_again and retry_transient("relay", written.exists, using=rows.db))
