"""Opens lanes that were left standing still."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.conf import Settings
from jobqueue.lanes import LOWEST
from jobqueue.transitions.advancing import sweep


@dataclass(frozen=True, slots=True)
class Keeping:
    """What one pass did."""

    jobs_opened: int


def run_once(settings: Settings, *, using: str) -> Keeping:
    """All lanes, a thousand at a time."""
    opened, after = sweep(LOWEST, using=using)
    while after is not None:
        found, after = sweep(after, using=using)
        opened += found
    return Keeping(opened)


class Rounds:
    """Looks at the lanes alone, a thousand at a time, round after round: for every second."""

    __name__ = "lane_keeper"

    def __init__(self) -> None:
        self._after: int | None = None

    def run_once(self, settings: Settings, *, using: str) -> Keeping:
        """One look; one index seek where no job has an ordering key."""
        opened, self._after = sweep(LOWEST if self._after is None else self._after, using=using)
        return Keeping(opened)
