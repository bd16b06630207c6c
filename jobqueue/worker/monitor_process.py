"""The monitor process as the supervisor sees it: it is started, watched, and replaced if it dies, stops or hangs."""

from __future__ import annotations

import logging
import time

from jobqueue.worker.monitor.monitor import CONNECTION_LOST, run_monitor
from jobqueue.worker.shared.processes import Forker, end_child, kill
from jobqueue.worker.shared.scoreboard import Scoreboard
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

START_SECONDS = 1.0  # between two starts
END_SECONDS = 5.0  # how long it may take to end when the worker ends
# If keep() was not called for this long, the supervisor stood still, and perhaps the monitor with it.
PAUSE_SECONDS = 5.0


class MonitorProcess:
    """Used by the supervisor's only thread, which calls keep() at least every few seconds."""

    def __init__(self, options: Options, scoreboard: Scoreboard, forker: Forker) -> None:
        self._options, self._scoreboard, self._header, self._forker = options, scoreboard, scoreboard.header, forker
        self.pid = 0
        #: the exit status of the worker, once no other monitor will be started
        self.status: int | None = None
        self._not_before = 0.0
        self._stopped_at: float | None = None
        self._out_of_time = False
        self._begin()

    def keep(self) -> None:
        """Kill a monitor that was stopped by a signal or hangs; start one if none runs."""
        now = time.monotonic()
        if self._stopped_at is not None and now - self._stopped_at > self._options.heartbeat_seconds:
            # All leases would expire while the children work. They are still valid for most of a lease.
            self._stopped_at = None
            kill(self.pid)
        if self.pid and self._header.ready and self._silent_seconds() > self._options.silent_seconds:
            self._kill_hanging()
        if self.pid or self.status is not None or now < self._not_before or not self._forker.ready:
            return
        self.pid = self._forker.fork(run_monitor, self._options, self._scoreboard)
        self._not_before = now + START_SECONDS
        self._begin()

    def stopped(self, stopped: bool) -> None:
        """Record that a signal stopped the process, or that it continues."""
        self._stopped_at = time.monotonic() if stopped else None

    def ended(self, code: int) -> None:
        """Record that it exited with `code`, or -signal. Sets `status` if no other monitor will be started."""
        self.pid, self._stopped_at = 0, None
        if not self._header.ready:
            self.status = code if code > 0 else 1
        elif self._out_of_time or code == CONNECTION_LOST:
            logger.error("the database was unreachable for longer than --db-retry; leaving")
            self.status = CONNECTION_LOST
        else:
            logger.error("the monitor process ended unexpectedly (%d); starting another", code)

    def end(self) -> None:
        """Ask it to end, and kill it after END_SECONDS."""
        self._header.monitor_stop = 1
        if self.pid:
            end_child(self.pid, END_SECONDS)

    def _begin(self) -> None:
        self._ticked_at = self._header.monitor_ticked_at
        self._since = self._looked_at = time.monotonic()

    def _silent_seconds(self) -> float:
        """Seconds since its last tick, without the time in which the supervisor itself stood still."""
        now = time.monotonic()
        if self._header.monitor_ticked_at != self._ticked_at or now - self._looked_at > PAUSE_SECONDS:
            self._ticked_at, self._since = self._header.monitor_ticked_at, now
        self._looked_at = now
        return now - self._since

    def _kill_hanging(self) -> None:
        """Kill it: it waits for an answer that may never come, and the next monitor opens another connection."""
        kill(self.pid)
        silent, limit = self._options.silent_seconds, self._options.db_retry_seconds
        now, since = time.monotonic(), self._header.database_down_since
        self._header.database_down, self._header.database_down_since = 1, since or now - silent
        # Monitors that hang, one after the other, cannot notice this themselves.
        self._out_of_time = bool(limit is not None and since and now - since > limit)
        self._begin()
        logger.error("the monitor has waited for an answer of the database for %.0f s; replacing it", silent)
