"""Whether the keeper does anything: it waits for a server, and may wait for ever."""

from __future__ import annotations

import time
from typing import Any

PAUSE_SECONDS = 5.0  # whoever looks more seldom stood still: the keeper may have stood still with it


class KeeperWatch:
    """Looks at the keeper's tick on the board; to be asked at least every few seconds."""

    def __init__(self, header: Any) -> None:
        self._header = header
        self.begin()

    def begin(self) -> None:
        """There is a new keeper."""
        self._seen: float = self._header.keeper_ticked_at
        self._since = self._looked_at = time.monotonic()

    def silent_seconds(self) -> float:
        """For how long it has not ticked, without the time in which nobody asked."""
        now = time.monotonic()
        if self._header.keeper_ticked_at != self._seen or now - self._looked_at > PAUSE_SECONDS:
            self._seen, self._since = self._header.keeper_ticked_at, now
        self._looked_at = now
        return now - self._since
