"""Deletes idempotency records that have expired."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.conf import Settings
from jobqueue.db.clock import UtcNow
from jobqueue.maintenance import old_rows
from jobqueue.models import IdempotencyRecord


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What one pass did."""

    records_deleted: int


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Forgetting:
    """Batches of `limit`, each its own transaction."""
    expired = IdempotencyRecord.objects.using(using).filter(expires_at__lt=UtcNow()).order_by("expires_at")
    return Forgetting(old_rows.delete(expired, "ix_idempotency_expiry", limit=limit))
