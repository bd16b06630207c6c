"""In which queues all due jobs have one priority, so that a claim that found some of it need not look below.

That look is one of the few statements between the commit of a job and its start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobqueue.transitions.claiming.candidates import Head
from jobqueue.transitions.claiming.request import Row

# As long as jobs of that priority go on coming, those of a lower one may wait for the next look, though there is room.
SINGLE_PRIORITY_SECONDS = 1.0


class SinglePriorityCache:
    """The memory of one claimer."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def holds(self, head: Head | None) -> bool:
        """Whether a moment ago nothing was due in the queue of `head` but jobs of its level."""
        level, good_until = self._known.get(head.queue, (None, 0.0)) if head else (None, 0.0)
        return head is not None and level is not None and level == head.level and time.monotonic() < good_until

    def looked(self, queue: str, rows: Sequence[Row]) -> None:
        """A claim went through all levels of `queue`; these were all that it could take."""
        levels = {row.priority for row in rows}
        if len(levels) == 1:
            self._known[queue] = levels.pop(), time.monotonic() + SINGLE_PRIORITY_SECONDS
        else:
            self.forget(queue)

    def forget(self, queue: str) -> None:
        """The next claim looks at all levels of `queue`."""
        self._known.pop(queue, None)
