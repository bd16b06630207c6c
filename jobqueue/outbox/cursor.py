"""How far a relay has come in each topic, so that it need not look there again and again.

While any transaction keeps an old snapshot open, the index entries of delivered events cannot be purged, and every
claim that begins at the head of a topic walks over all of them.
"""

from __future__ import annotations

import time
from datetime import datetime

# Events may appear below a floor: late commits, retries by hand. They wait this long at most.
FLOOR_SECONDS = 1.0


class Floors:
    """The memory of one relay: by lane, when the last event taken was due.

    A lane that gave less than was asked for is looked at from its head again.
    """

    def __init__(self) -> None:
        self._known: dict[int, datetime] = {}
        self._good_until = 0.0

    def of(self, lane: int) -> datetime | None:
        """Where to begin; None at the head."""
        now = time.monotonic()
        if now >= self._good_until:
            # All at once: lanes come and go, and the memory must not grow with them.
            self._known, self._good_until = {}, now + FLOOR_SECONDS
        return self._known.get(lane)

    def keep(self, lane: int, floor: datetime | None) -> None:
        """What the look that has just been made says; None = it came back short."""
        if floor is None:
            self._known.pop(lane, None)
        else:
            self._known[lane] = floor
