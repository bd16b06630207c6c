"""The monitor's less urgent duties: the rows of workers, reaping, and chores for the whole database."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from django.db import Error

from jobqueue.conf import Settings, load
from jobqueue.db import fault_vendor, is_lost_connection
from jobqueue.dead_letters.alone import queues_alone
from jobqueue.maintenance import (
    gate_sweep,
    group_cleaner,
    group_sweep,
    lock_sweeper,
    lock_watch,
    ordering_sweep,
    pruner,
    queue_levels,
    reaper,
    redriver,
    worker_rows,
)
from jobqueue.maintenance.cleaner import CLEANERS
from jobqueue.outbox import unrouted
from jobqueue.signals import Dispatch
from jobqueue.transitions import Reaped
from jobqueue.worker.monitor import unserved
from jobqueue.worker.monitor.duty_thread import DutyThread
from jobqueue.worker.monitor.gate_opener import GateOpener
from jobqueue.worker.shared.retry_counts import RetryTotal, totals
from jobqueue.worker.shared.scoreboard import Scoreboard
from jobqueue.worker.shared.worker_options import Options

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

# Leases that are reaped in one transaction. On a database with one writer, renewals wait for the end of it, and other
# processes try every 0.1 s to write: on a busy machine 1,000 leases of 1,000 workers took 20 s, and a monitor that
# renews nothing for half a lease is replaced.
BATCH, BATCH_OF_ONE_WRITER = 1000, 100
BETWEEN_BATCHES_SECONDS, BETWEEN_WRITERS_SECONDS = 0.01, 0.1
UNROUTED_SECONDS = 60.0  # between two counts of events without a destination
ALONE_SECONDS = 2.0  # between two looks for jobs that are to run alone
SKIP_SECONDS = 60.0  # a missing right may be granted meanwhile


class Housekeeping:
    """Runs the duties that are due, in a thread of its own.

    `living` returns index and name of each living child. `turn` is held for each batch of reaping: on a database with
    one writer, renewals would hardly ever get the lock between two batches.
    """

    def __init__(
        self,
        options: Options,
        scoreboard: Scoreboard,
        living: Callable[[], list[tuple[int, str]]],
        doubt: Callable[[], None],
        dispatch: Dispatch | None,
        turn: AbstractContextManager[object],
    ) -> None:
        self._options, self._scoreboard, self._living, self._turn = options, scoreboard, living, turn
        self._using = options.database
        self._ended: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._next_rows = self._next_reaping = self._next_redrive = self._next_sweep = self._next_watch = 0.0
        # Later: a worker that starts has more urgent things to do.
        self._next_prune = time.monotonic() + random.uniform(1.0, 2.0)
        # A worker that ends when nothing is due would wait for such a job.
        self._next_alone = math.inf if options.once or options.drain else 0.0
        # The first look was before the start of the children.
        self._next_unserved = time.monotonic() + unserved.INTERVAL_SECONDS
        # Only /metrics shows the number.
        shown = options.probe_port is not None and load().outbox is not None
        self._next_unrouted = 0.0 if shown else math.inf
        self._reaped = Reaped()
        #: by index of the child: its name, and the counts as they were last written
        self._retries: dict[int, tuple[str, list[RetryTotal]]] = {}
        one_writer = fault_vendor(self._using).single_writer
        self._batch = BATCH_OF_ONE_WRITER if one_writer else BATCH
        self._chores = Chores(options.database, self._batch, self._takes_fewer, turn)
        self._between_seconds = BETWEEN_WRITERS_SECONDS if one_writer else BETWEEN_BATCHES_SECONDS
        self._gates = GateOpener(options.database, scoreboard, doubt, dispatch, opens=options.reaper)
        self.thread = DutyThread("housekeeping", self.round, options.database, doubt, dispatch)

    def end(self, most_seconds: float) -> None:
        """Wait up to `most_seconds` for a last round of the threads."""
        self.thread.end(most_seconds)
        self._gates.thread.end(most_seconds)

    def retire(self, name: str, reason: str) -> None:
        """Have the end of worker `name` written to its row, by the thread. Safe in any thread."""
        self._ended.put((name, reason))

    def round(self) -> None:
        """Do what is due."""
        do, now = self.thread.do, time.monotonic()
        do(self.write_ends)
        if now >= self._next_rows:
            self._next_rows = now + self._options.heartbeat_seconds
            do(self.renew_workers)
        if now >= self._next_unserved:
            self._next_unserved = now + random.uniform(0.8, 1.2) * unserved.INTERVAL_SECONDS
            do(self.warn_of_unserved)
        if now >= self._next_unrouted:
            self._next_unrouted = now + random.uniform(0.8, 1.2) * UNROUTED_SECONDS
            do(self.count_unrouted)
        if now >= self._next_alone:
            self._next_alone = now + random.uniform(0.8, 1.2) * ALONE_SECONDS
            do(self.look_for_alone)
        self._gates.wake_if_asked()
        if not self._options.reaper:
            return
        if now >= self._next_reaping:
            self._next_reaping = now + random.uniform(0.8, 1.2)
            do(self.reap)
        if now >= self._next_redrive or self._chores.redriver.active:
            self._next_redrive = now + random.uniform(0.8, 1.2)
            do(self.redrive)
        if now >= self._next_sweep:
            self._next_sweep = now + random.uniform(0.8, 1.2) * lock_sweeper.INTERVAL_SECONDS
            do(self._chores.sweep)
        if now >= self._next_prune:
            self._next_prune = now + random.uniform(0.8, 1.2) * pruner.INTERVAL_SECONDS
            do(self.prune)
        if now >= self._next_watch:
            self._next_watch = now + random.uniform(0.8, 1.2) * lock_watch.INTERVAL_SECONDS
            do(self._chores.watch)

    def write_ends(self) -> None:
        """Write the ends that were given to retire()."""
        while not self._ended.empty():
            name, reason = self._ended.get()
            try:
                worker_rows.retire(name, reason, using=self._using)
            except BaseException:
                self._ended.put((name, reason))
                raise

    def renew_workers(self) -> None:
        """Update the heartbeats of the living children, and retire workers that sent none for too long."""
        if names := [name for _, name in self._living()]:
            worker_rows.renew(names, using=self._using)
        for index, name in self._living():
            # Only tasks that have failed or have a dependency are counted: most workers write nothing here.
            found = totals([self._scoreboard.retries[index]])
            if found and (name, found) != self._retries.get(index):
                worker_rows.note_retries(name, [total.shown() for total in found], using=self._using)
                self._retries[index] = name, found
        if self._options.reaper:
            worker_rows.retire_silent(load().worker_silent_seconds, using=self._using)

    def warn_of_unserved(self) -> None:
        """Log which queues with jobs no running worker serves."""
        unserved.warn(self._options)

    def count_unrouted(self) -> None:
        """Count the events for which relays found no route and no subscriber: an index seek per key, 1,000 at most."""
        found = unrouted.find(using=self._using)
        self._scoreboard.header.outbox_unrouted = sum(len(each.ids) for each in found)

    def look_for_alone(self) -> None:
        """Have the supervisor start a process if a job of one of the queues is to run alone."""
        if any(map(self._options.selection.serves, queues_alone(using=self._using))):
            self._scoreboard.header.alone = 1

    def _takes_fewer(self) -> bool:
        """Whether a child runs fewer jobs than it may, because the database is in trouble."""
        slots, most = self._scoreboard.slots, self._options.concurrency
        return any(0 < slots[index].level < most for index, _ in self._living())

    def reap(self) -> None:
        """End one batch of expired leases. If the batch was full, the next one follows soon."""
        with self._turn:
            found = reaper.end_batch(using=self._using, limit=self._batch)
        self._scoreboard.header.reaped += found.total
        self._reaped += found
        if found.total == self._batch:
            self._next_reaping = 0.0
            self.thread.next_soon(self._between_seconds)
            return
        done, self._reaped = self._reaped, Reaped()
        if done.total:
            logger.warning("reaped %d lapsed leases: %d requeued, %d dead", done.total, done.requeued, done.dead)
        self._chores.open_lanes()
        self._gates.wake()

    def redrive(self) -> None:
        """Take the next step of a redrive. If the one after it is due already, it follows soon."""
        with self._turn:
            self._chores.redrive()
        if self._chores.redriver.more:
            self.thread.next_soon(self._between_seconds)

    def prune(self) -> None:
        """Delete some ended jobs. If there are more, the next step follows after a pause."""
        self._chores.prune()
        if self._chores.pruner.more:
            self._next_prune = time.monotonic() + self._chores.pruner.pause_seconds
            self.thread.next_soon(self._chores.pruner.pause_seconds)


class Chore(Protocol):
    """One pass; returns counts."""

    def __call__(self, settings: Settings, *, using: str) -> DataclassInstance: ...


class Chores:
    """Work for the whole database, which any number of workers may do at once.

    A chore that the database refuses, as to an account without the right, is skipped for SKIP_SECONDS.
    """

    def __init__(
        self,
        using: str,
        batch: int = BATCH,
        in_trouble: Callable[[], bool] = lambda: False,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self.using = using
        self.redriver, self.pruner = redriver.Redriver(batch), pruner.Pruner(batch, turn)
        self.sweepers: dict[str, Chore] = {"lock sweeper": lock_sweeper.run_once}
        self.sweepers |= {f"cleaner of {cleaner.model._meta.db_table}": cleaner.run_once for cleaner in CLEANERS}
        self.sweepers["cleaner of job_group"] = group_cleaner.run_once
        self.watches: dict[str, Chore] = {"lock watch": lock_watch.run_once}
        self.openers: dict[str, Chore] = {
            "ordering sweep": ordering_sweep.OrderingSweep().run_once,
            "gate sweep": gate_sweep.GateSweep().run_once,
            "group sweep": group_sweep.GroupSweep().run_if_due,
            "queue levels": queue_levels.QueueLevels(in_trouble).run_once,
        }
        self.redrivers: dict[str, Chore] = {"redriver": self.redriver.run_once}
        self.pruners: dict[str, Chore] = {"pruner": self.pruner.run_once}
        self._skipped_until: dict[str, float] = {}

    def sweep(self) -> None:
        """Delete old rows."""
        self._do(self.sweepers, "deleted")

    def watch(self) -> None:
        """Record what the server reports about locks."""
        self._do(self.watches, "found")

    def open_lanes(self) -> None:
        """Open jobs that a crash has stalled, behind others of their ordering key or behind gates."""
        self._do(self.openers, "promoted")

    def redrive(self) -> None:
        """Bring dead letters back, as far as redrives are recorded."""
        self._do(self.redrivers, "redriven")

    def prune(self) -> None:
        """Delete ended jobs."""
        self._do(self.pruners, "pruned")

    def _do(self, chores: dict[str, Chore], what: str) -> None:
        for name, chore in chores.items():
            if time.monotonic() < self._skipped_until.get(name, 0.0):
                continue
            try:
                found = chore(load(), using=self.using)
            except Error as error:
                if is_lost_connection(error, self.using):
                    raise
                if name not in self._skipped_until:
                    logger.warning("skipping the %s for %d s: %s", name, SKIP_SECONDS, error)
                self._skipped_until[name] = time.monotonic() + SKIP_SECONDS
            else:
                if what in ("redriven", "pruned"):
                    continue  # these chores report what they do
                if any(asdict(found).values()):
                    logger.info("%s: %s: %s", name, what, found)
                elif what != "promoted":  # each second
                    detail.debug("%s: nothing %s", name, what)
