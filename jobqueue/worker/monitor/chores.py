"""What a monitor does for the whole database now and then: open lanes, delete what is over, look at locks."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import Any

from django.db import Error

from jobqueue.conf import load
from jobqueue.db import Fault, fault_vendor
from jobqueue.maintenance import (
    idempotency_cleaner,
    lock_history_cleaner,
    lock_sweeper,
    lock_watch,
    ordering_key_cleaner,
    ordering_sweep,
    outbox_cleaner,
)

logger = logging.getLogger("jobqueue.worker")

LEFT_OUT_SECONDS = 60.0  # somebody may grant the right meanwhile


class Chores:
    """Each may be done by any number of workers. One that this account has no right to is left out for a while."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.sweepers: list[Any] = [
            lock_sweeper,
            outbox_cleaner,
            idempotency_cleaner,
            lock_history_cleaner,
            ordering_key_cleaner,
        ]
        self.watches: list[Any] = [lock_watch]
        self.openers: list[Any] = [ordering_sweep.Rounds()]
        self._left_out_until: dict[Any, float] = {}

    def sweep(self) -> None:
        """Delete what is over."""
        self._do(self.sweepers, "deleted what was over")

    def watch(self) -> None:
        """Keep what the server tells of locks."""
        self._do(self.watches, "seen among the server's locks")

    def open_lanes(self) -> None:
        """Let ordering keys go on that a crash left standing still."""
        self._do(self.openers, "opened")

    def _do(self, chores: list[Any], what: str) -> None:
        for chore in chores:
            if time.monotonic() < self._left_out_until.get(chore, 0.0):
                continue
            try:
                found = chore.run_once(load(), using=self.using)
            except Error as error:
                if fault_vendor(self.using).fault(error) is Fault.GONE:
                    raise
                name = chore.__name__.rpartition(".")[2]
                if chore not in self._left_out_until:
                    logger.warning("this worker does without its %s: %s", name.replace("_", " "), error)
                self._left_out_until[chore] = time.monotonic() + LEFT_OUT_SECONDS
            else:
                if any(asdict(found).values()):
                    logger.info("%s: %s", what, found)
