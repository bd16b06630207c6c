"""The job threads of one child process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from jobqueue.transitions import Lease
from jobqueue.worker.board import CANCEL, LOST
from jobqueue.worker.perform import Ending, Outcome, perform


class Pool:
    """Takes leases, runs them in `threads` threads, hands back outcomes in the order they end."""

    def __init__(self, slots: Any, stopping: Callable[[], bool]) -> None:
        self._slots = slots
        self._stopping = stopping
        self._todo: SimpleQueue[Lease | None] = SimpleQueue()
        self._ended: SimpleQueue[Outcome | None] = SimpleQueue()
        self.in_hand = 0
        for index in range(len(slots)):
            # Daemons: a job that never returns must not keep the process from leaving.
            threading.Thread(target=self._work, args=(slots[index],), name=f"job-{index + 1}", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Leases that no thread has taken yet."""
        return self._todo.qsize()

    def submit(self, lease: Lease) -> None:
        """Run `lease` when a thread is free."""
        self.in_hand += 1
        self._todo.put(lease)

    def take_back(self) -> list[Lease]:
        """The leases that were not started; they will not be."""
        leases: list[Lease] = []
        while True:
            try:
                lease = self._todo.get_nowait()
            except Empty:
                self.in_hand -= len(leases)
                return leases
            if lease is not None:
                leases.append(lease)

    def wake(self) -> None:
        """End the current wait() early. Safe in a signal handler."""
        self._ended.put(None)

    def wait(self, seconds: float) -> list[Outcome]:
        """Outcomes as soon as there is one, [] after `seconds` without."""
        try:
            first = self._ended.get(timeout=max(0.0, seconds))
        except Empty:
            return []
        ended = [first]
        while True:
            try:
                ended.append(self._ended.get_nowait())
            except Empty:
                outcomes = [outcome for outcome in ended if outcome is not None]
                self.in_hand -= len(outcomes)
                return outcomes

    def _work(self, slot: Any) -> None:
        while True:
            lease = self._todo.get()
            if lease is None:
                return
            slot.flags = 0
            slot.fence = lease.fence
            slot.started = time.monotonic()
            # Last: from here on the job counts as started, whatever happens to this process.
            slot.job_id = lease.job_id
            try:
                outcome = perform(lease, lambda: bool(slot.flags & (LOST | CANCEL)) or self._stopping())
            except BaseException as error:
                outcome = Outcome(lease, Ending.FAILED, 0.0, error=error)
            # Before the outcome is handed over: a job whose body has ended did not kill this process.
            slot.job_id = 0
            self._ended.put(outcome)
