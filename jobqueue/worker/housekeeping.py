"""What a keeper does beside its first duties: rows of workers, reaping, clean-up. It may take its time."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any

from jobqueue import workers
from jobqueue.conf import load
from jobqueue.db import fault_vendor
from jobqueue.maintenance import lock_sweeper, lock_watch, reaper
from jobqueue.signals import Carrier
from jobqueue.transitions import Reaped
from jobqueue.worker.board import Board
from jobqueue.worker.chores import Chores
from jobqueue.worker.options import Options
from jobqueue.worker.rounds import Rounds

logger = logging.getLogger("jobqueue.worker")

# Leases that end in one transaction. Where there is one writer, renewals wait for its end, and others look every 0.1 s
# whether it has come: on a busy machine 1,000 of 1,000 workers took 20 s, and a keeper that renews nothing for half a
# lease is replaced.
BATCH, BATCH_OF_ONE_WRITER = 1000, 100
BETWEEN_BATCHES_SECONDS, BETWEEN_WRITERS_SECONDS = 0.01, 0.1


class Housekeeping:
    """One round is one look at which duties are due. `living` gives the names of the children that live.

    `turn` is held for each batch: with one writer, renewals would hardly ever meet a moment between two of them.
    """

    def __init__(
        self,
        options: Options,
        board: Board,
        living: Callable[[], list[str]],
        doubt: Callable[[], None],
        carrier: Carrier | None,
        turn: AbstractContextManager[Any],
    ) -> None:
        self._options, self._board, self._living, self._turn = options, board, living, turn
        self._using = options.database
        self._chores = Chores(options.database)
        self._ended: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._next_rows = self._next_reaping = self._next_sweep = self._next_watch = 0.0
        self._reaped = Reaped()
        one_writer = fault_vendor(self._using).single_writer
        self._batch = BATCH_OF_ONE_WRITER if one_writer else BATCH
        self._between_seconds = BETWEEN_WRITERS_SECONDS if one_writer else BETWEEN_BATCHES_SECONDS
        self.rounds = Rounds("housekeeping", self.round, options.database, doubt, carrier)

    def retire(self, name: str, reason: str) -> None:
        """Have it written that this worker has ended. Safe in any thread."""
        self._ended.put((name, reason))

    def round(self) -> None:
        """Do what is due."""
        do, now = self.rounds.do, time.monotonic()
        do(self.write_ends)
        if now >= self._next_rows:
            self._next_rows = now + self._options.heartbeat_seconds
            do(self.renew_workers)
        if not self._options.reaper:
            return
        if now >= self._next_reaping:
            self._next_reaping = now + random.uniform(0.8, 1.2)
            do(self.reap)
        if now >= self._next_sweep:
            self._next_sweep = now + random.uniform(0.8, 1.2) * lock_sweeper.INTERVAL_SECONDS
            do(self._chores.sweep)
        if now >= self._next_watch:
            self._next_watch = now + random.uniform(0.8, 1.2) * lock_watch.INTERVAL_SECONDS
            do(self._chores.watch)

    def write_ends(self) -> None:
        """Retire who was given to retire()."""
        while not self._ended.empty():
            name, reason = self._ended.get()
            try:
                workers.retire(name, reason, using=self._using)
            except BaseException:
                self._ended.put((name, reason))
                raise

    def renew_workers(self) -> None:
        """Say which workers live, and mark those that are silent."""
        if names := self._living():
            workers.renew(names, using=self._using)
        if self._options.reaper:
            workers.retire_silent(load().worker_silent_seconds, using=self._using)

    def reap(self) -> None:
        """One batch of leases that nobody renewed; where that was not all of them, the next one comes soon."""
        with self._turn:
            found = reaper.end_batch(using=self._using, limit=self._batch)
        self._board.header.reaped += found.total
        self._reaped += found
        if found.total == self._batch:
            self._next_reaping = 0.0
            self.rounds.next_soon(self._between_seconds)
            return
        done, self._reaped = self._reaped, Reaped()
        if done.total:
            logger.warning("reaped %d lapsed leases: %d requeued, %d dead", done.total, done.requeued, done.dead)
        self._chores.open_lanes()
