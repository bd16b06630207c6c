"""The main thread of a child: claim, hand to the job threads, wait. The settler writes how they ended."""

from __future__ import annotations

import logging
import os
import random
import time
from typing import Any

from django.db import Error

from jobqueue import transitions
from jobqueue.db import fault_vendor, one_writer
from jobqueue.exceptions import DatabaseBusy
from jobqueue.transitions import Lease
from jobqueue.worker.child.circuit_breaker import CircuitBreaker
from jobqueue.worker.child.concurrency_limit import ConcurrencyLimit
from jobqueue.worker.child.fetcher import Fetcher
from jobqueue.worker.child.outage import Outage
from jobqueue.worker.child.recycling import Recycling
from jobqueue.worker.child.reload import Watcher
from jobqueue.worker.child.settler import Settler
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import Exit, Stop, Winding
from jobqueue.worker.shared.waits import Waits
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

HOT_SECONDS = 0.0025  # how long to wait between looks at the queue right after there was work
HOT_SHARE = 0.02  # then, for a second, this much of the time since: what comes often is looked for often
QUIET_SECONDS = 10.0  # without work for so long, the shorter half of the idle pauses is left out
FULL_SECONDS = 0.2  # how long to wait when no more may be claimed; the pool wakes earlier


class Loop:
    """One child's work until it is told, or has reason, to end."""

    def __init__(self, options: Options, index: int, name: str, scoreboard: Any) -> None:
        self.options, self.name = options, name
        self.header, self.slot = scoreboard.header, scoreboard.slots[index]
        self.parent: int = scoreboard.supervisor_pid
        self.stopping = self.notified = False
        quota = options.quota(index)
        # What earlier incarnations of this child claimed counts: a job that killed one was started.
        self.quota = None if quota is None else max(0, quota - self.slot.claimed)
        self.pool = Pool(
            scoreboard.lease_slots[index], options.concurrency, options.async_concurrency, lambda: self.stopping
        )
        self.pool.unkept = self._unkept
        self.turn = one_writer(options.database)
        concurrency = ConcurrencyLimit(options.concurrency, self.slot, name, adaptive=options.adaptive)
        breaker = CircuitBreaker(self.slot, name, adaptive=options.adaptive)
        finishing = Outage(name, "finish", options.database, concurrency)
        hands = 1 if fault_vendor(options.database).single_writer else 2
        self.waits = Waits(name, options.database, options.lease_seconds / 2)
        self.settler = Settler(self.pool, self.slot, finishing, breaker, self.turn, hands, self.waits)
        self.fetcher = Fetcher(
            options, name, scoreboard, index, self.pool, self.settler, concurrency, breaker, self.turn
        )
        self.recycling = Recycling(options, self.slot)
        self.watcher = Watcher() if options.reload else None
        self.started = self.last_claim = time.monotonic()

    def run(self) -> Exit:
        """Work; the reason for ending."""
        reason = Exit.STOPPED
        while True:
            self.stopping = self.stopping or self._told_to_stop()
            if not self.stopping and (end := self._own_end()) is not None:
                reason, self.stopping = end, True
            self.pool.enforce_limits()
            self.waits.cut()
            self._give_back(self.pool.take_refused())
            if self.stopping or self._winding():
                self.slot.room = 0
                self._give_back(self.pool.take_back())
                if self.stopping and not self.pool.held:
                    return reason
                self.pool.wait(0.05)
                continue
            self._give_back(self.pool.take_back_late(self.settler.mean_run_seconds or 0.0))
            # Looked at before the claim: a job that ends after it may have left new ones.
            was_idle = not self.pool.held
            claimed = self._claim(notified=self.notified)
            if not claimed and self.notified:
                # Perhaps for a queue whose name is new.
                self.notified = False
                self.options.selection.forget()
                claimed = self._claim()
            if was_idle and self._drained():
                reason, self.stopping = self._done("nothing is due"), True
                continue
            self.pool.wait(self._pause(claimed))

    def notify(self) -> None:
        """Somebody says that a job was committed: look now. Safe in any thread."""
        self.notified = True
        self.pool.wake()

    def stop(self) -> None:
        """Stop claiming, finish what runs, give the rest back. Safe in a signal handler."""
        self.stopping = True
        self.pool.wake()

    def _told_to_stop(self) -> bool:
        # The supervisor is gone when somebody else is our parent: nobody would renew leases for ever.
        return self.header.stop != Stop.RUN or os.getppid() != self.parent

    def _unkept(self) -> bool:
        """Whether nobody has looked after leases for long: what has run out would not be flagged either."""
        return time.monotonic() - float(self.header.renewed_at) > 2 * self.options.heartbeat_seconds

    def _winding(self) -> bool:
        """Whether to begin nothing more, for the monitor will end this process when what runs here has ended."""
        if self.slot.winding == Winding.ASKED and self.pool.loop_runs():
            self.slot.winding = Winding.ANSWERED
        return bool(self.slot.winding)

    def _own_end(self) -> Exit | None:
        options, now = self.options, time.monotonic()
        if self.quota == 0:
            return self._done("it has run as many jobs as it was to") if not self.pool.held else None
        if options.max_seconds is not None and now - self.started >= options.max_seconds:
            return self._done("its --max-time is over")
        idle = not self.pool.held and now - self._last_work()
        if options.idle_exit_seconds is not None and idle and idle >= options.idle_exit_seconds:
            return self._done("it was idle for its --idle-exit")
        if (worn := self.recycling.over()) is not None:
            return worn
        if self.watcher is not None and self.watcher.changed():
            return Exit.RELOAD
        return None

    def _done(self, why: str) -> Exit:
        logger.info("%s: %s; leaving", self.name, why)
        return Exit.DONE

    def _last_work(self) -> float:
        return max(self.last_claim, self.settler.last_written)

    def _drained(self) -> bool:
        return (self.options.drain or self.options.once) and self.fetcher.empty and not self.pool.held

    def _claim(self, *, notified: bool = False) -> int | None:
        """How many jobs came; None if there was no room for any."""
        claimed = self.fetcher.claim(self.quota, notified=notified)
        if claimed is None:
            self.fetcher.look_again()
        elif claimed:
            self.last_claim = time.monotonic()
            if self.quota is not None:
                self.quota -= claimed
        return claimed

    def _pause(self, claimed: int | None) -> float:
        if claimed is None:
            return FULL_SECONDS
        if self.fetcher.outage.failures:
            return max(HOT_SECONDS, self.fetcher.outage.next_try - time.monotonic())
        idle = time.monotonic() - self._last_work()
        if claimed or idle < 1.0:
            return max(HOT_SECONDS, HOT_SHARE * idle)
        low, high = self.options.poll_low_seconds, self.options.poll_high_seconds
        return random.uniform(low if idle < QUIET_SECONDS else (low + high) / 2, high)

    def _give_back(self, leases: list[Lease]) -> None:
        if not leases:
            return
        self.slot.claimed -= len(leases)
        if self.quota is not None:
            self.quota += len(leases)
        try:
            with self.turn:
                transitions.release_many(leases)
        except (Error, DatabaseBusy) as error:
            logger.warning("%d unstarted jobs could not be given back: %s; the monitor will do it", len(leases), error)
        self.pool.settled(leases)
