"""The table of chores: the periodic work for the whole database, which workers and reap_leases do.

A chore is registered once, in Chores.table. Reaping is none: it is urgent, and no chore may keep it waiting.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from django.db import Error

from jobqueue.alarms import looking
from jobqueue.conf import Settings, load
from jobqueue.db import is_lost_connection
from jobqueue.exceptions import DatabaseBusy
from jobqueue.flow.overview import running_workers
from jobqueue.maintenance import cleaner, gate_sweep, lock_watch, pruner, queue_levels, stat_rollup, sweeps
from jobqueue.runs.bulk_steps import BULK_VERBS
from jobqueue.runs.redrive_steps import REDRIVES
from jobqueue.runs.stepping import Runner
from jobqueue.signals import Dispatch

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

#: jobs of one transaction
BATCH = 1000
#: the time budget of a chore in one turn of a worker, and in one pass of a command
TURN_SECONDS, PASS_SECONDS = 1.0, 30.0
#: the pause before the next step of a chore that has more to do
STEP_SECONDS = 0.01
#: the pause while a redrive or a bulk verb is under way, whose next step is due in a moment
ACTIVE_SECONDS = 0.2
SKIP_SECONDS = 60.0  # a missing right may be granted meanwhile


class Step(Protocol):
    """A bounded step; returns counts by name."""

    def __call__(self, settings: Settings, *, using: str) -> Counter[str]: ...


class Whole(Protocol):
    """Does all that is due, for about `seconds`; returns counts by name."""

    def __call__(self, settings: Settings, *, using: str, seconds: float) -> Counter[str]: ...


class Steps(Protocol):
    """What remembers where the next step goes on."""

    more: bool  # whether there is more to do at once

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]: ...


@dataclass(frozen=True, slots=True)
class Chore:
    """Work for the whole database, which any number of processes may do at once.

    A worker calls `step` every `every_seconds`, a fifth more or less, and again after `again()` seconds while that is
    not None. Without `step` it calls `whole` with a budget of TURN_SECONDS; a turn that has used it up is followed by
    another one after the same time. A command calls `whole`; without it, only workers do this.
    """

    name: str  # in log lines
    every_seconds: float
    whole: Whole | None = None
    step: Step | None = None
    counts: tuple[str, ...] = ()  # the names of those that reap_leases prints
    again: Callable[[], float | None] = lambda: None
    in_turn: bool = False  # on a database with one writer, it does not run while this worker renews leases
    first_seconds: tuple[float, float] = (0.0, 0.0)  # from the start of a worker to the first turn: least, most
    level: int = logging.INFO  # of the line with the counts of a turn; NOTSET: no line, as of those that log themselves
    missed: str = ""  # what a command says if the database refuses this chore, and goes on; "": its pass ends


def repeat(steps: Steps, settings: Settings, *, using: str, seconds: float) -> Counter[str]:
    """Take steps until there is no more to do, or for about `seconds`."""
    done, end = Counter[str](), time.monotonic() + seconds
    while True:
        done += steps.run_once(settings, using=using)
        if not steps.more or time.monotonic() >= end:
            return done


def in_words(counts: Counter[str]) -> str:
    """The counts that are not 0, as log lines have them: "3 locks freed, 1 mutexes deleted"."""
    return ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in counts.items() if value)


class Chores:
    """The chores of one process. `turn` is held by those that wait for each other on a database with one writer.

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
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        self.using, self._turn, self._step_seconds = using, turn or nullcontext(), step_seconds
        self.gate_sweep = gate_sweep.GateSweep(workers=running_workers)
        self.alarm_watch = looking.AlarmWatch(dispatch)
        self.table = [
            *self._sweeps(in_trouble),
            *self._recorded_runs(batch),
            *self._deletions(batch, turn),
            *self._watches(),
        ]
        now = time.monotonic()
        self._next = {chore.name: now + random.uniform(*chore.first_seconds) for chore in self.table}
        self._failed: set[str] = set()

    def _sweeps(self, in_trouble: Callable[[], bool]) -> Iterator[Chore]:
        """Those that let jobs go on which a crash has stalled, and move the levels of queues."""
        lanes, gates, groups = sweeps.OrderingSweep(), self.gate_sweep, sweeps.GroupSweep()
        yield Chore("ordering sweep", 1.0, lanes.sweep_all, lanes.run_once, ("jobs_opened",))
        yield Chore("gate sweep", 1.0, gates.sweep_all, gates.run_once, ("gates_jobs_opened", "gates_rows_deleted"))
        yield Chore("group sweep", 10.0, groups.sweep_all, groups.run_once, ("groups_members_ended", "groups_ended"))
        yield Chore("queue levels", 1.0, step=partial(queue_levels.run_once, in_trouble=in_trouble))

    def _recorded_runs(self, batch: int) -> Iterator[Chore]:
        """Those that carry redrives and bulk verbs out."""
        for name, kind in (("redriver", REDRIVES), ("bulk runner", BULK_VERBS)):
            steps = Runner(kind, batch)
            again = partial(self._soon, steps)
            whole = partial(repeat, steps)
            yield Chore(name, 1.0, whole, steps.run_once, kind.counts, again, in_turn=True, level=logging.NOTSET)

    def _deletions(self, batch: int, turn: AbstractContextManager[object] | None) -> Iterator[Chore]:
        """Those that delete what has ended or is old, and add statistics up."""
        yield Chore("lock sweeper", 60.0, cleaner.sweep_locks, counts=("locks_freed", "mutexes_deleted"))
        for name, one in cleaner.CLEANERS.items():
            yield Chore(f"cleaner of {name}", 60.0, one.run_once, counts=(f"{name}_deleted",))
        rollup = stat_rollup.StatRollup()
        yield Chore(
            "roll-up of job_stat",
            60.0,
            partial(repeat, rollup),
            rollup.run_once,
            ("statistics_added_up",),
            lambda: stat_rollup.PAUSE_SECONDS if rollup.more else None,
            in_turn=True,
            first_seconds=(0.0, 60.0),
            level=logging.NOTSET,
        )
        # A worker's steps rest in between, and remember where many jobs stay.
        steps = pruner.Pruner(batch, turn)
        yield Chore(
            "pruner",
            pruner.INTERVAL_SECONDS,
            partial(repeat, pruner.Pruner(once=True)),
            steps.run_once,
            ("jobs_deleted", "attempts_deleted"),
            lambda: steps.pause_seconds if steps.more else None,
            # A worker that starts has more urgent things to do.
            first_seconds=(1.0, 2.0),
            level=logging.NOTSET,
            missed="No ended jobs were deleted in this pass.",
        )

    def _watches(self) -> Iterator[Chore]:
        """Those that look for what people should know."""
        # The page of lock activity has what it finds, every few seconds.
        yield Chore("lock watch", lock_watch.INTERVAL_SECONDS, step=lock_watch.run_once, level=logging.DEBUG)
        look = self.alarm_watch.run_once
        yield Chore(
            "alarms",
            looking.INTERVAL_SECONDS,
            lambda settings, *, using, seconds: look(settings, using=using),
            look,
            first_seconds=(0.0, 1.0),
            level=logging.NOTSET,
            missed="Nobody has looked for alarms in this pass.",
        )

    def _soon(self, steps: Runner) -> float | None:
        if steps.more:
            return self._step_seconds
        return ACTIVE_SECONDS if steps.active else None

    def due(self) -> Iterator[Chore]:
        """The chores whose turn has come, one after another."""
        return (chore for chore in self.table if time.monotonic() >= self._next[chore.name])

    def take_turn(self, chore: Chore) -> float | None:
        """Take a worker's turn at a chore. Returns the pause until the next one, if there is more to do.

        Raises DatabaseBusy, which the next turn may not meet, and errors of a lost connection.
        """
        begun = time.monotonic()
        self._next[chore.name] = begun + random.uniform(0.8, 1.2) * chore.every_seconds
        try:
            with self._turn if chore.in_turn else nullcontext():
                found = self._call(chore)
        except DatabaseBusy:
            raise
        except Exception as error:
            if is_lost_connection(error, self.using):
                raise
            if chore.name not in self._failed:
                unexpected = None if isinstance(error, Error) else error
                logger.warning("skipping the %s for %d s: %s", chore.name, SKIP_SECONDS, error, exc_info=unexpected)
            self._failed.add(chore.name)
            self._next[chore.name] = time.monotonic() + SKIP_SECONDS
            return None
        if words := in_words(found):
            if chore.level:
                logger.log(chore.level, "%s: %s", chore.name, words)
        elif chore.every_seconds > 1.0:
            detail.debug("%s: nothing to do", chore.name)
        pause = chore.again()
        if chore.step is None and time.monotonic() - begun >= TURN_SECONDS:
            pause = TURN_SECONDS
        if pause is not None:
            self._next[chore.name] = time.monotonic() + pause
        return pause

    def _call(self, chore: Chore) -> Counter[str]:
        if chore.step is not None:
            return chore.step(load(), using=self.using)
        return chore.whole(load(), using=self.using, seconds=TURN_SECONDS) if chore.whole else Counter()
