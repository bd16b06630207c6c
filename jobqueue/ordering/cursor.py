"""How far each lane has come, so that whoever looks for its head need not begin at the first place it ever had.

While any transaction keeps an old snapshot open, the index entries of places that were removed cannot be purged, and a
look that begins at the first of them walks over all.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from jobqueue.db import vendor
from jobqueue.ordering.lanes import Place

# Places are added behind the last one and removed before the head, so none can appear below a head that was seen; but
# what is known is not trusted for longer, nor by the sweep.
CURSOR_SECONDS = 1.0
_LANES_MAX = 10_000


class LaneCursors:
    """The memory of one process: by lane the head that was seen last."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, int], int] = {}
        self._good_until = 0.0

    def of(self, lanes: Iterable[int], *, using: str) -> dict[int, int]:
        """By lane the place behind which its head is."""
        now = time.monotonic()
        if now >= self._good_until or len(self._heads) > _LANES_MAX:
            # All at once: lanes come and go, and the memory must not grow with them.
            self._heads, self._good_until = {}, now + CURSOR_SECONDS
        return {lane: self._heads.get((using, lane), 1) - 1 for lane in lanes}

    def keep(self, heads: Mapping[int, Place], *, using: str) -> None:
        """These were met. Nothing where the database keeps no versions of rows: there is nothing to walk over."""
        if not vendor(using).single_writer:
            self._heads |= {(using, lane): place.id for lane, place in heads.items()}
