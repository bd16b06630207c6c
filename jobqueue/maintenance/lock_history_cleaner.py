"""Deletes figures and findings about locks that are older than LOCK_METRICS_SECONDS."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.conf import Settings
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance import old_rows
from jobqueue.models import LockFinding, LockStat


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What one pass did."""

    figures_deleted: int
    findings_deleted: int


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Forgetting:
    """Batches of `limit`, each its own transaction. With the setting None everything goes."""
    before = UtcNowPlus(-(settings.lock_metrics_seconds or 0.0))
    stats = LockStat.objects.using(using).filter(counted_at__lt=before).order_by("counted_at")
    findings = LockFinding.objects.using(using).filter(last_seen_at__lt=before).order_by("last_seen_at")
    return Forgetting(
        old_rows.delete(stats, "ix_lock_stat_age", limit=limit),
        old_rows.delete(findings, "ix_lock_finding_age", limit=limit),
    )
