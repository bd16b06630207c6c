"""The main thread of a child: claim, hand to the job threads, wait. The settler writes how they ended."""

from __future__ import annotations

import logging
import os
import random
import time
from contextlib import AbstractContextManager
from typing import Any

from django.db import Error, connections

from jobqueue import transitions
from jobqueue.db import cutting, fault_vendor, one_writer
from jobqueue.exceptions import DatabaseBusy
from jobqueue.transitions import Lease
from jobqueue.worker.board import Exit, Stop, Winding
from jobqueue.worker.brake import Brake
from jobqueue.worker.governor import Governor
from jobqueue.worker.intake import Intake
from jobqueue.worker.options import Options
from jobqueue.worker.outage import Outage
from jobqueue.worker.pool import Pool
from jobqueue.worker.reload import Watcher
from jobqueue.worker.settler import Settler
from jobqueue.worker.wear import Wear

logger = logging.getLogger("jobqueue.worker")

HOT_SECONDS = 0.0025  # how long to wait between looks at the queue right after there was work
HOT_SHARE = 0.02  # then, for a second, this much of the time since: what comes often is looked for often
QUIET_SECONDS = 10.0  # without work for so long, the shorter half of the idle pauses is left out
FULL_SECONDS = 0.2  # how long to wait when no more may be claimed; the pool wakes earlier


class Loop:
    """One child's work until it is told, or has reason, to end."""

    def __init__(self, options: Options, index: int, name: str, board: Any) -> None:
        self.options, self.name = options, name
        self.header, self.region = board.header, board.regions[index]
        self.parent: int = board.supervisor_pid
        self.stopping = self.rung = False
        quota = options.quota(index)
        # What earlier incarnations of this child claimed counts: a job that killed one was started.
        self.quota = None if quota is None else max(0, quota - self.region.claimed)
        self.pool = Pool(board.entries[index], options.concurrency, options.async_concurrency, lambda: self.stopping)
        self.pool.unkept = self._unkept
        self.turn = one_writer(options.database)
        governor = Governor(options.concurrency, self.region, name, adaptive=options.adaptive)
        brake = Brake(self.region, name, adaptive=options.adaptive)
        finishing = Outage(name, "finish", options.database, governor)
        hands = 1 if fault_vendor(options.database).single_writer else 2
        self.settler = Settler(self.pool, self.region, finishing, brake, self.turn, hands, self._watched)
        self.intake = Intake(options, name, board, index, self.pool, self.settler, governor, brake, self.turn)
        self.wear = Wear(options, self.region)
        self.watcher = Watcher() if options.reload else None
        self.started = self.last_claim = time.monotonic()

    def run(self) -> Exit:
        """Work; the reason for ending."""
        reason = Exit.STOPPED
        while True:
            self.stopping = self.stopping or self._told_to_stop()
            if not self.stopping and (end := self._own_end()) is not None:
                reason, self.stopping = end, True
            self._give_back(self.pool.take_refused())
            if self.stopping or self._winding():
                self.region.room = 0
                self._give_back(self.pool.take_back())
                if self.stopping and not self.pool.held:
                    return reason
                self.pool.wait(0.05)
                continue
            self._give_back(self.pool.take_back_late(self.settler.mean_run_seconds or 0.0))
            # Looked at before the claim: a job that ends after it may have left new ones.
            was_idle = not self.pool.held
            claimed = self._claim(rung=self.rung)
            if not claimed and self.rung:
                # Perhaps for a queue whose name is new.
                self.rung = False
                self.options.selection.forget()
                claimed = self._claim()
            if was_idle and self._drained():
                reason, self.stopping = self._done("nothing is due"), True
                continue
            self.pool.wait(self._pause(claimed))

    def ring(self) -> None:
        """Somebody says that a job was committed: look now. Safe in any thread."""
        self.rung = True
        self.pool.wake()

    def stop(self) -> None:
        """Stop claiming, finish what runs, give the rest back. Safe in a signal handler."""
        self.stopping = True
        self.pool.wake()

    def _watched(self) -> AbstractContextManager[None]:
        """Within the block, statements of this thread that are not answered end."""
        return cutting.watched(connections[self.options.database])

    def _told_to_stop(self) -> bool:
        # The supervisor is gone when somebody else is our parent: nobody would renew leases for ever.
        return self.header.stop != Stop.RUN or os.getppid() != self.parent

    def _unkept(self) -> bool:
        """Whether nobody has looked after leases for long: what has run out would not be flagged either."""
        return time.monotonic() - float(self.header.renewed_at) > 2 * self.options.heartbeat_seconds

    def _winding(self) -> bool:
        """Whether to begin nothing more, for the keeper will end this process when what runs here has ended."""
        if self.region.winding == Winding.ASKED and self.pool.loop_runs():
            self.region.winding = Winding.ANSWERED
        return bool(self.region.winding)

    def _own_end(self) -> Exit | None:
        options, now = self.options, time.monotonic()
        if self.quota == 0:
            return self._done("it has run as many jobs as it was to") if not self.pool.held else None
        if options.max_seconds is not None and now - self.started >= options.max_seconds:
            return self._done("its --max-time is over")
        idle = not self.pool.held and now - self._last_work()
        if options.idle_exit_seconds is not None and idle and idle >= options.idle_exit_seconds:
            return self._done("it was idle for its --idle-exit")
        if (worn := self.wear.over()) is not None:
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
        return (self.options.drain or self.options.once) and self.intake.empty and not self.pool.held

    def _claim(self, *, rung: bool = False) -> int | None:
        """How many jobs came; None if there was no room for any."""
        with self._watched():
            claimed = self.intake.claim(self.quota, rung=rung)
            if claimed is None:
                self.intake.look_again()
        if claimed:
            self.last_claim = time.monotonic()
            if self.quota is not None:
                self.quota -= claimed
        return claimed

    def _pause(self, claimed: int | None) -> float:
        if claimed is None:
            return FULL_SECONDS
        if self.intake.outage.failures:
            return max(HOT_SECONDS, self.intake.outage.next_try - time.monotonic())
        idle = time.monotonic() - self._last_work()
        if claimed or idle < 1.0:
            return max(HOT_SECONDS, HOT_SHARE * idle)
        low, high = self.options.poll_low_seconds, self.options.poll_high_seconds
        return random.uniform(low if idle < QUIET_SECONDS else (low + high) / 2, high)

    def _give_back(self, leases: list[Lease]) -> None:
        if not leases:
            return
        self.region.claimed -= len(leases)
        if self.quota is not None:
            self.quota += len(leases)
        try:
            with self.turn, self._watched():
                transitions.release_many(leases)
        except (Error, DatabaseBusy) as error:
            logger.warning("%d unstarted jobs could not be given back: %s; the keeper will do it", len(leases), error)
        self.pool.settled(leases)
