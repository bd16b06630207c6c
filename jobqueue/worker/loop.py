"""The main thread of a child: claim, hand to the threads, write outcomes, wait. All its SQL runs on one connection."""

from __future__ import annotations

import logging
import os
import random
import time
from functools import partial
from typing import Any

from django.db import Error, connections

from jobqueue import transitions
from jobqueue.conf import load
from jobqueue.db import fault_vendor
from jobqueue.db.retry import retries, retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.worker.board import Exit, Stop
from jobqueue.worker.options import Options
from jobqueue.worker.perform import Outcome
from jobqueue.worker.pool import Pool
from jobqueue.worker.reload import Watcher
from jobqueue.worker.settle import settle

logger = logging.getLogger("jobqueue.worker")

HOT_SECONDS = 0.005  # how long to wait between looks at the queue for a second after there was work
FLUSH_SECONDS = 0.003  # how long outcomes may gather while jobs are still coming
AHEAD_SECONDS = 0.5  # jobs are claimed ahead of free threads for at most this much expected work


class Loop:
    """One child's work until it is told, or has reason, to end."""

    def __init__(self, options: Options, index: int, name: str, board: Any) -> None:
        self.options, self.name = options, name
        self.header, self.region = board.header, board.regions[index]
        self.parent = os.getppid()
        self.stopping = False
        quota = options.quota(index)
        # What earlier incarnations of this child claimed counts: a job that killed one was started.
        self.quota = None if quota is None else max(0, quota - self.region.claimed)
        self.pool = Pool(board.entries[index], options.concurrency, lambda: self.stopping)
        self.unwritten: list[Outcome] = []
        self.strays = False
        self.watcher = Watcher() if options.reload else None
        self.mean_run_seconds: float | None = None
        self.troubles = 0
        self.started = self.last_work = time.monotonic()

    def run(self) -> Exit:
        """Work; the reason for ending."""
        reason = Exit.STOPPED
        while True:
            self.stopping = self.stopping or self._told_to_stop()
            if not self.stopping and (end := self._own_end()) is not None:
                reason, self.stopping = end, True
            if self.stopping:
                self._give_back()
                self.pool.enforce_limits()
                if not self.pool.in_hand and not self.unwritten:
                    return reason
                self._settle(self.pool.wait(0.05))
                continue
            self.pool.enforce_limits()
            claimed = self._claim()
            if not claimed and self._drained():
                reason, self.stopping = Exit.DONE, True
                continue
            self._settle(self.pool.wait(self._pause(claimed)))

    def stop(self) -> None:
        """Stop claiming, finish what runs, give the rest back. Safe in a signal handler."""
        self.stopping = True
        self.pool.wake()

    def _told_to_stop(self) -> bool:
        # The supervisor is gone when somebody else is our parent: nobody would renew leases for ever.
        return self.header.stop != Stop.RUN or os.getppid() != self.parent

    def _own_end(self) -> Exit | None:
        options, now = self.options, time.monotonic()
        if self.quota == 0:
            return Exit.DONE if not self.pool.in_hand else None
        if options.max_seconds is not None and now - self.started >= options.max_seconds:
            return Exit.DONE
        idle = not self.pool.in_hand and now - self.last_work
        if options.idle_exit_seconds is not None and idle and idle >= options.idle_exit_seconds:
            return Exit.DONE
        if options.max_rss_bytes is not None and rss_bytes() > options.max_rss_bytes:
            return Exit.RECYCLE
        if self.watcher is not None and self.watcher.changed():
            return Exit.RELOAD
        return None

    def _drained(self) -> bool:
        options = self.options
        return (options.drain or options.once) and not (self.pool.in_hand or self.unwritten or self.troubles)

    def _claim(self) -> int:
        """Fill the threads, and a little ahead of them; how many jobs came."""
        room = self._room()
        if room <= 0:
            return 0
        claimed, faults = 0, sum(retries.values())
        try:
            self._release_strays()
            using = self.options.database
            for queue in retry_transient(partial(self.options.selection.names, using), using=using):
                leases = transitions.claim(
                    queue,
                    room - claimed,
                    worker=self.name,
                    lease_seconds=load().queue_lease_seconds(queue, self.options.lease_seconds),
                    using=using,
                )
                for lease in leases:
                    self.pool.submit(lease)
                claimed += len(leases)
                if claimed >= room:
                    break
            self._fine()
        except (Error, DatabaseBusy) as error:
            self._trouble(error)
        if sum(retries.values()) != faults:
            self.strays = True
        if claimed:
            self.last_work = time.monotonic()
        self.region.claimed += claimed
        if self.quota is not None:
            self.quota -= claimed
        return claimed

    def _room(self) -> int:
        threads = self.options.concurrency
        ahead = 0
        if self.mean_run_seconds is not None:
            ahead = int(AHEAD_SECONDS * threads / max(self.mean_run_seconds, 1e-5))
        most = min(max(threads, self.options.batch_size), threads + ahead)
        # Claims are worth making when about half of what may be in hand is used up.
        room = most - self.pool.in_hand if self.pool.waiting <= (most - threads) // 2 else 0
        if self.unwritten or (self.troubles and self.pool.in_hand):
            return 0
        room = min(room, self.pool.room)
        return room if self.quota is None else min(room, self.quota)

    def _pause(self, claimed: int) -> float:
        if self.unwritten or self.troubles:
            return float(min(5.0, 0.1 * 2 ** min(self.troubles, 6)) * random.uniform(0.5, 1.0))
        if claimed or time.monotonic() - self.last_work < 1.0:
            return HOT_SECONDS
        return random.uniform(self.options.poll_low_seconds, self.options.poll_high_seconds)

    def _settle(self, ended: list[Outcome]) -> None:
        if ended and self.pool.waiting:
            time.sleep(FLUSH_SECONDS)
            ended += self.pool.wait(0)
        outcomes = self.unwritten + ended
        if not outcomes:
            return
        ended_leases = [outcome.lease for outcome in outcomes]
        for outcome in ended:
            mean = self.mean_run_seconds
            self.mean_run_seconds = outcome.run_seconds if mean is None else 0.9 * mean + 0.1 * outcome.run_seconds
        try:
            self.unwritten = settle(outcomes, self.region)
        except Exception:
            logger.exception("outcomes of %d jobs could not be settled; their leases will be reaped", len(outcomes))
            self.unwritten = []
        waiting = {outcome.lease.job_id for outcome in self.unwritten}
        self.pool.settled(lease for lease in ended_leases if lease.job_id not in waiting)
        if self.unwritten:
            self._trouble(None)
        self.last_work = time.monotonic()

    def _give_back(self) -> None:
        leases = self.pool.take_back()
        if not leases:
            return
        self.region.claimed -= len(leases)
        try:
            transitions.release_many(leases)
            self.pool.settled(leases)
        except (Error, DatabaseBusy) as error:
            logger.warning("%d unstarted jobs could not be given back: %s; the keeper will do it", len(leases), error)

    def _release_strays(self) -> None:
        """Give back leases in our name that are not in hand: a claim was committed and its answer was lost."""
        if self.strays:
            held = transitions.held_by(self.name, using=self.options.database)
            transitions.release_many([lease for lease in held if not self.pool.holds(lease)])
            self.strays = False

    def _fine(self) -> None:
        if self.troubles:
            logger.info("%s: the database answers again", self.name)
        self.troubles = 0

    def _trouble(self, error: BaseException | None) -> None:
        self.troubles += 1
        if error is not None and isinstance(error, Error) and fault_vendor(self.options.database).fault(error) is None:
            logger.error("%s: the database refused a claim: %s", self.name, error)
        elif self.troubles == 1:
            logger.warning("%s: the database is away (%s); trying again until it answers", self.name, error)
        connections[self.options.database].close()


def rss_bytes() -> int:
    """Resident memory of this process, 0 where /proc does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
