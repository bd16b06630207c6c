"""Work for the whole database that the monitor's housekeeping does: deleting, opening, redriving, adding up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from django.db import Error

from jobqueue.alarms.watch import AlarmWatch
from jobqueue.conf import Settings, load
from jobqueue.db import is_lost_connection
from jobqueue.exceptions import DatabaseBusy
from jobqueue.flow.unaware import running_workers
from jobqueue.maintenance import (
    bulk_runner,
    gate_sweep,
    group_cleaner,
    group_sweep,
    lock_sweeper,
    lock_watch,
    ordering_sweep,
    pruner,
    queue_levels,
    redriver,
    stat_rollup,
)
from jobqueue.maintenance.cleaner import CLEANERS
from jobqueue.signals import Dispatch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

#: jobs of one transaction
BATCH = 1000
SKIP_SECONDS = 60.0  # a missing right may be granted meanwhile


class Chore(Protocol):
    """One pass; returns counts."""

    def __call__(self, settings: Settings, *, using: str) -> DataclassInstance: ...


class Chores:
    """Work for the whole database, which any number of workers may do at once.

    A chore that the database refuses, as to an account without the right, is skipped for SKIP_SECONDS, and so is one
    that raises anything else: the others go on.
    """

    def __init__(
        self,
        using: str,
        batch: int = BATCH,
        in_trouble: Callable[[], bool] = lambda: False,
        turn: AbstractContextManager[object] | None = None,
        dispatch: Dispatch | None = None,
    ) -> None:
        self.using = using
        self.redriver, self.pruner = redriver.Redriver(batch), pruner.Pruner(batch, turn)
        self.bulk_runner = bulk_runner.BulkRunner(batch)
        self.rollup = stat_rollup.StatRollup()
        self.sweepers: dict[str, Chore] = {"lock sweeper": lock_sweeper.run_once}
        self.sweepers |= {f"cleaner of {cleaner.model._meta.db_table}": cleaner.run_once for cleaner in CLEANERS}
        self.sweepers["cleaner of job_group"] = group_cleaner.run_once
        self.watches: dict[str, Chore] = {"lock watch": lock_watch.run_once}
        self.gate_sweep = gate_sweep.GateSweep(workers=running_workers)
        self.openers: dict[str, Chore] = {
            "ordering sweep": ordering_sweep.OrderingSweep().run_once,
            "gate sweep": self.gate_sweep.run_once,
            "group sweep": group_sweep.GroupSweep().run_if_due,
            "queue levels": queue_levels.QueueLevels(in_trouble).run_once,
        }
        self.redrivers: dict[str, Chore] = {
            "redriver": self.redriver.run_once,
            "bulk runner": self.bulk_runner.run_once,
        }
        self.pruners: dict[str, Chore] = {"pruner": self.pruner.run_once}
        self.rollups: dict[str, Chore] = {"roll-up of job_stat": self.rollup.run_once}
        self.alarm_watch = AlarmWatch(dispatch)
        self.alarms: dict[str, Chore] = {"alarms": self.alarm_watch.run_once}
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
        """Bring dead letters back, and apply verbs to many jobs, as far as that is recorded."""
        self._do(self.redrivers, "redriven")

    @property
    def is_redriving(self) -> bool:
        """Whether a redrive or a bulk verb is under way, whose next step is due in a moment."""
        return self.redriver.active or self.bulk_runner.active

    @property
    def more_to_redrive(self) -> bool:
        """Whether the next step of one is due at once."""
        return self.redriver.more or self.bulk_runner.more

    def prune(self) -> None:
        """Delete ended jobs."""
        self._do(self.pruners, "pruned")

    def roll_up(self) -> None:
        """Add rows of statistics up."""
        self._do(self.rollups, "added up")

    def look_for_alarms(self) -> None:
        """Let a thread compare figures with thresholds, if it is this process's turn, and tell people."""
        self._do(self.alarms, "started")

    def _do(self, chores: dict[str, Chore], what: str) -> None:
        busy: DatabaseBusy | None = None
        for name, chore in chores.items():
            if time.monotonic() < self._skipped_until.get(name, 0.0):
                continue
            try:
                found = chore(load(), using=self.using)
            except DatabaseBusy as error:
                busy = error  # told when the others have had their turn
            except Exception as error:
                if is_lost_connection(error, self.using):
                    raise
                if name not in self._skipped_until:
                    unexpected = None if isinstance(error, Error) else error
                    logger.warning("skipping the %s for %d s: %s", name, SKIP_SECONDS, error, exc_info=unexpected)
                self._skipped_until[name] = time.monotonic() + SKIP_SECONDS
            else:
                if what in ("redriven", "pruned"):
                    continue  # these chores report what they do
                if any(asdict(found).values()) and what not in ("added up", "started"):  # each minute, and more often
                    words = ", ".join(f"{value} {field}" for field, value in asdict(found).items() if value)
                    # What the lock watch finds is on the page of lock activity, every few seconds.
                    logger.log(logging.DEBUG if what == "found" else logging.INFO, "%s: %s: %s", name, what, words)
                elif what != "promoted":  # each second
                    detail.debug("%s: nothing %s", name, what)
        if busy is not None:
            raise busy
