"""Whether the monitor does anything: it waits for a server, and may wait for ever."""

from __future__ import annotations

import time
from typing import Any

PAUSE_SECONDS = 5.0  # whoever looks more seldom stood still: the monitor may have stood still with it


class MonitorWatch:
    """Looks at the monitor's tick on the scoreboard; to be asked at least every few seconds."""

    def __init__(self, header: Any) -> None:
        self._header = header
        self.begin()

    def begin(self) -> None:
        """There is a new monitor."""
        self._seen: float = self._header.monitor_ticked_at
        self._since = self._looked_at = time.monotonic()

    def note_outage(self, silent_seconds: float, limit_seconds: float | None) -> bool:
        """The monitor is replaced for its silence: whether monitors that hang one after the other are over the limit.

        They cannot tell it themselves.
        """
        now, since = time.monotonic(), self._header.database_down_since
        self._header.database_down, self._header.database_down_since = 1, since or now - silent_seconds
        self.begin()
        return bool(limit_seconds is not None and since and now - since > limit_seconds)

    def silent_seconds(self) -> float:
        """For how long it has not ticked, without the time in which nobody asked."""
        now = time.monotonic()
        if self._header.monitor_ticked_at != self._seen or now - self._looked_at > PAUSE_SECONDS:
            self._seen, self._since = self._header.monitor_ticked_at, now
        self._looked_at = now
        return now - self._since
