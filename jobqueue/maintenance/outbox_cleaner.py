"""Deletes events that were delivered long ago, and key rows that may be made anew. Dead letters stay."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.conf import Settings
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance import old_rows
from jobqueue.models import OutboxEvent, OutboxKey

#: a key row is only locked, never read: one that is missing is made again by the next publish
KEY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What one pass did."""

    events_deleted: int
    keys_deleted: int


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Cleaning:
    """Batches of `limit`, each its own transaction."""
    events, seconds = 0, settings.outbox_settings.retention_seconds
    if seconds is not None:
        old = OutboxEvent.objects.using(using).filter(processed_at__lt=UtcNowPlus(-seconds)).order_by("processed_at")
        events = old_rows.delete(old, "ix_outbox_processed", limit=limit)
    keys = OutboxKey.objects.using(using).filter(created_at__lt=UtcNowPlus(-KEY_SECONDS)).order_by("created_at")
    return Cleaning(events, old_rows.delete(keys, "ix_outbox_key_age", limit=limit))
