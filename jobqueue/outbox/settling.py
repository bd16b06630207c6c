"""What becomes of leased events. Every write proves the lease by its token; who lost it changes nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.backoff import Backoff
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.cutting import watched
from jobqueue.db.prepared import Prepared
from jobqueue.db.retry import retry_transient
from jobqueue.failures import describe
from jobqueue.models import OutboxEvent
from jobqueue.outbox import statements
from jobqueue.outbox.event import Event

_ENDED: dict[str, Any] = {"lane": None, "due_at": None, "lock_token": None}


class LeaseLost(Exception):
    """Somebody else may have these events now: nothing more of them may be sent."""


def mark_processed(ids: Collection[int], token: bytes, *, using: str) -> int:
    """Write that these events were delivered; how many of them were still leased under `token`."""
    return _change(statements.mark_processed(using), ids, token, using)


def give_back(ids: Collection[int], token: bytes, *, using: str, delay_seconds: float = 0.0) -> int:
    """End the lease of events that were not delivered, without a charge; how many were still leased."""
    return _change(statements.give_back(using), ids, token, using, seconds=delay_seconds)


def renew(ids: Collection[int], token: bytes, *, lease_seconds: float, using: str) -> bool:
    """Whether all of these events are still leased under `token`, and now for `lease_seconds` more."""
    return _change(statements.renew(using), ids, token, using, seconds=lease_seconds) == len(ids)


def fail(event: Event, token: bytes, error: BaseException | str, *, using: str) -> float | None:
    """Charge a failed delivery: the seconds until the next, or None when the event is set aside. Raises LeaseLost."""
    settings = load()
    limits = settings.outbox_settings
    if event.attempt >= limits.max_attempts:
        set_aside(event, token, error, using=using)
        return None
    backoff = Backoff(settings.backoff_base_seconds, settings.backoff_factor, settings.backoff_cap_seconds)
    delay = backoff.delay_seconds(event.attempt)
    again = {"lock_token": None, "due_at": UtcNowPlus(delay), **_charge(event, error)}
    if not _settle(event, token, again, using):
        raise LeaseLost
    return delay


def set_aside(event: Event, token: bytes, error: BaseException | str, *, using: str) -> None:
    """No more attempts. With a key and policy "block" it stays in its lane, and its key waits. Raises LeaseLost."""
    gone = event.key is None or load().outbox_settings.poison == "skip"
    changes = _ENDED if gone else {"lock_token": None, "due_at": None}
    if not _settle(event, token, {**changes, "failed_at": UtcNow(), **_charge(event, error)}, using):
        raise LeaseLost


def _charge(event: Event, error: BaseException | str) -> dict[str, Any]:
    return {"attempts": event.attempt, "last_error": describe(error)}


def _settle(event: Event, token: bytes, changes: dict[str, Any], using: str) -> int:
    held: QuerySet[OutboxEvent] = OutboxEvent.objects.using(using).filter(pk=event.id, lock_token=token)
    with watched(connections[using]):
        return retry_transient(lambda: vendor(using).update_by_key(held, changes), using=using)


def _change(statement: Prepared, ids: Collection[int], token: bytes, using: str, **values: float) -> int:
    if not ids:
        return 0
    with watched(connections[using]):
        return retry_transient(lambda: statement.change(ids=sorted(ids), token=token, **values), using=using)
