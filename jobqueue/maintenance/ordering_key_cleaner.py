"""Deletes rows of ordering keys: they are only locked, never read, and made again by the next enqueue."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.conf import Settings
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance import old_rows
from jobqueue.models import OrderingKey

KEY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What one pass did."""

    ordering_keys_deleted: int


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Forgetting:
    """Batches of `limit`, each its own transaction."""
    keys = OrderingKey.objects.using(using).filter(created_at__lt=UtcNowPlus(-KEY_SECONDS)).order_by("created_at")
    return Forgetting(old_rows.delete(keys, "ix_ordering_key_age", limit=limit))
