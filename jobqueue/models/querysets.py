"""Questions about jobs. Reading only; adjectives, never verbs."""

from __future__ import annotations

from typing import Any

from django.db import models

from jobqueue.db.clock import UtcNow


class JobQuerySet(models.QuerySet[Any]):
    """Job.objects: the states people ask for."""

    def ready(self) -> JobQuerySet:
        """Waiting: due, delayed, gated or parked."""
        return self.filter(status=0)

    def due(self) -> JobQuerySet:
        """Waiting and allowed to run now, by the database's clock."""
        return self.filter(status=0, gate=0, run_at__lte=UtcNow())

    def leased(self) -> JobQuerySet:
        """Held by a worker."""
        return self.filter(status=1)

    def expired(self) -> JobQuerySet:
        """Held, but the lease has run out: reap takes these."""
        return self.filter(status=1, lock_until__lt=UtcNow())

    def dead(self) -> JobQuerySet:
        """FAILED: no attempt left, or a result that could not be stored."""
        return self.filter(status=3)
