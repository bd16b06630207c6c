"""What a monitor does for the whole database now and then: open lanes, delete what is over, look at locks."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import Any, Protocol

from django.db import Error

from jobqueue.conf import Settings, load
from jobqueue.db import Fault, fault_vendor
from jobqueue.maintenance import lock_sweeper, lock_watch, ordering_sweep
from jobqueue.maintenance.cleaner import CLEANERS

logger = logging.getLogger("jobqueue.worker")

LEFT_OUT_SECONDS = 60.0  # somebody may grant the right meanwhile


class Chore(Protocol):
    """One pass; returns a dataclass of counts."""

    def __call__(self, settings: Settings, *, using: str) -> Any: ...


class Chores:
    """Any number of workers may do each. One that this account has no right to is skipped for LEFT_OUT_SECONDS."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.sweepers: dict[str, Chore] = {"lock sweeper": lock_sweeper.run_once}
        self.sweepers |= {f"cleaner of {cleaner.model._meta.db_table}": cleaner.run_once for cleaner in CLEANERS}
        self.watches: dict[str, Chore] = {"lock watch": lock_watch.run_once}
        self.openers: dict[str, Chore] = {"ordering sweep": ordering_sweep.OrderingSweep().run_once}
        self._left_out_until: dict[str, float] = {}

    def sweep(self) -> None:
        """Delete what is over."""
        self._do(self.sweepers, "deleted what was over")

    def watch(self) -> None:
        """Keep what the server tells of locks."""
        self._do(self.watches, "seen among the server's locks")

    def open_lanes(self) -> None:
        """Let ordering keys go on that a crash left standing still."""
        self._do(self.openers, "opened")

    def _do(self, chores: dict[str, Chore], what: str) -> None:
        for name, chore in chores.items():
            if time.monotonic() < self._left_out_until.get(name, 0.0):
                continue
            try:
                found = chore(load(), using=self.using)
            except Error as error:
                if fault_vendor(self.using).fault(error) is Fault.GONE:
                    raise
                if name not in self._left_out_until:
                    logger.warning("skipping the %s for %d s: %s", name, LEFT_OUT_SECONDS, error)
                self._left_out_until[name] = time.monotonic() + LEFT_OUT_SECONDS
            else:
                if any(asdict(found).values()):
                    logger.info("%s: %s: %s", name, what, found)
