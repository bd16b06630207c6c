"""Opens lanes that were left standing still, and deletes rows of ordering keys that may be made anew."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.conf import Settings
from jobqueue.db.clock import UtcNowPlus
from jobqueue.lanes import LOWEST
from jobqueue.maintenance import old_rows
from jobqueue.models import OrderingKey
from jobqueue.transitions.advancing import sweep

#: such a row is only locked, never read: one that is missing is made again by the next enqueue
KEY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """What one pass did."""

    jobs_opened: int
    ordering_keys_deleted: int


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Keeping:
    """All lanes, a thousand at a time; old keys in batches of `limit`, each its own transaction."""
    opened, after = sweep(LOWEST, using=using)
    while after is not None:
        found, after = sweep(after, using=using)
        opened += found
    keys = OrderingKey.objects.using(using).filter(created_at__lt=UtcNowPlus(-KEY_SECONDS)).order_by("created_at")
    return Keeping(opened, old_rows.delete(keys, "ix_ordering_key_age", limit=limit))


class Rounds:
    """Looks at the lanes alone, a thousand at a time, round after round: for every second."""

    __name__ = "lane_keeper"

    def __init__(self) -> None:
        self._after: int | None = None

    def run_once(self, settings: Settings, *, using: str) -> Keeping:
        """One look; one index seek where no job has an ordering key."""
        opened, self._after = sweep(LOWEST if self._after is None else self._after, using=using)
        return Keeping(opened, 0)
