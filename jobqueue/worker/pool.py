"""The job threads of one child process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from jobqueue.transitions import Lease
from jobqueue.worker.board import CANCEL, LOST, Hold
from jobqueue.worker.perform import Ending, Outcome, Run, perform
from jobqueue.worker.timeouts import Watch


class Pool:
    """Takes leases, runs them in `threads` threads, hands back outcomes in the order they end."""

    def __init__(self, entries: Any, threads: int, stopping: Callable[[], bool]) -> None:
        self._free = list(entries)
        self._held: dict[tuple[int, int], Any] = {}
        self._stopping = stopping
        self._todo: SimpleQueue[tuple[Lease, Any]] = SimpleQueue()
        self._ended: SimpleQueue[Outcome | None] = SimpleQueue()
        self._watches: list[Watch] = []
        self.in_hand = 0
        for number in range(threads):
            # Daemons: a job that never returns must not keep the process from leaving.
            threading.Thread(target=self._work, name=f"job-{number + 1}", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Leases that no thread has taken yet."""
        return self._todo.qsize()

    @property
    def room(self) -> int:
        """How many more leases the board can hold; those whose end is not written yet count."""
        return len(self._free)

    def submit(self, lease: Lease) -> None:
        """Run `lease` when a thread is free."""
        entry = self._free.pop()
        entry.fence, entry.flags, entry.job_id = lease.fence, 0, lease.job_id
        entry.hold = Hold.WAITING
        self._held[lease.job_id, lease.fence] = entry
        self.in_hand += 1
        self._todo.put((lease, entry))

    def holds(self, lease: Lease) -> bool:
        """Whether `lease` is in hand: waiting, running, or ended and not settled."""
        return (lease.job_id, lease.fence) in self._held

    def settled(self, leases: Iterable[Lease]) -> None:
        """The ends of these leases are written: their places on the board are free."""
        for lease in leases:
            entry = self._held.pop((lease.job_id, lease.fence), None)
            if entry is not None:
                entry.hold, entry.job_id = Hold.FREE, 0
                self._free.append(entry)

    def take_back(self) -> list[Lease]:
        """The leases that were not started; they will not be."""
        leases: list[Lease] = []
        while True:
            try:
                lease, _entry = self._todo.get_nowait()
            except Empty:
                self.in_hand -= len(leases)
                return leases
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

    def _asked_to_stop(self, entry: Any) -> bool:
        return bool(entry.flags & (LOST | CANCEL)) or self._stopping()

    def enforce_limits(self) -> None:
        """Raise SoftTimeout in the threads whose job has run for too long."""
        for watch in self._watches:
            watch.enforce()

    def _work(self) -> None:
        watch = Watch()
        self._watches.append(watch)
        while True:
            lease, entry = self._todo.get()
            # From here on the job counts as started, whatever happens to this process.
            entry.hold = Hold.RUNNING
            try:
                outcome = perform(lease, Run(entry, watch, partial(self._asked_to_stop, entry)))
            except BaseException as error:
                outcome = Outcome(lease, Ending.FAILED, 0.0, error=error)
            # From here on it did not kill this process, and if it returned it need not run again.
            if outcome.ending is Ending.OK:
                entry.keep_result(outcome.result)
            else:
                entry.hold = Hold.OVER
            self._ended.put(outcome)
