"""The monitor's thread for schedules: it announces those of its children, and fires all that are due.

It also looks for stalls: unlike housekeeping, it waits for no lock that keeps jobs from being claimed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable

from jobqueue.log_format import count_of
from jobqueue.maintenance import worker_rows
from jobqueue.schedules import firing, versions
from jobqueue.signals import Dispatch
from jobqueue.worker.monitor.duty_thread import DutyThread
from jobqueue.worker.monitor.stall_watch import StallWatch
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

#: between two looks for ticks that are due: with the time of a transaction, a tick fires within two seconds
LOOK_SECONDS = 0.8


class Scheduler:
    """Every worker fires all schedules, whatever its queues: the first one that locks a due schedule fires it.

    `living` returns index and name of each living child. With --no-scheduler it only announces. `register` lets
    children announce their schedules again.
    """

    def __init__(
        self,
        options: Options,
        living: Callable[[], list[tuple[int, str]]],
        doubt: Callable[[], None],
        dispatch: Dispatch | None,
        stalls: StallWatch,
        register: Callable[[Iterable[int]], None],
    ) -> None:
        self._register = register
        self._living, self._using, self._fires = living, options.database, options.scheduler
        self._stalls, self._begun = stalls, time.monotonic()
        self._looks, self._failing = firing.Looks(), set[str]()
        self._next_stalls = self._begun + stalls.interval_seconds
        self._next_announcement = self._next_look = 0.0
        self.thread = DutyThread("schedules", self.round, options.database, doubt, dispatch)

    def round(self) -> None:
        now = time.monotonic()
        if now >= self._next_announcement:
            self._next_announcement = now + random.uniform(0.8, 1.0) * versions.ANNOUNCE_SECONDS
            self.thread.do(self.announce)
        if self._fires and now >= self._next_look:
            self._next_look = now + random.uniform(0.8, 1.0) * LOOK_SECONDS
            self.thread.do(self.fire)
        if now >= self._next_stalls:
            self._next_stalls = now + random.uniform(0.8, 1.0) * self._stalls.interval_seconds
            self.thread.do(self._stalls.look)

    def announce(self) -> None:
        """Note which versions of schedules the children have, and put those in force that have to be."""
        if living := self._living():
            announced = worker_rows.schedules_of([name for _, name in living], using=self._using)
            if not versions.keep_announced(sorted(announced), self._using):
                self._register(index for index, _ in living)
        versions.settle(self._using, self._failing)
        # After a time without any worker, the workers of all versions first have the time to announce theirs.
        if self._fires and time.monotonic() - self._begun > versions.RETIRE_SECONDS:
            versions.retire(self._using)

    def fire(self) -> None:
        """Add the jobs of the ticks that are due."""
        done = firing.fire_due(self._using, self._looks)
        if done.jobs:
            logger.debug("schedules: added %s", count_of(done.jobs, "job"))
        if done.more:
            self._next_look = 0.0
            self.thread.next_soon(0.01)
