"""The job threads and the coroutine lane of one child process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from jobqueue import registry
from jobqueue.transitions import Lease
from jobqueue.worker import forked
from jobqueue.worker.board import CANCEL, LOST, Hold
from jobqueue.worker.lane import Lane
from jobqueue.worker.mailbox import Mailbox
from jobqueue.worker.perform import Ending, Outcome, Run, is_coroutine, perform
from jobqueue.worker.timeouts import Watch


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of leases that were claimed."""

    sync: int
    coroutines: int
    surplus: list[Lease]  # of either kind, not taken: to be given back

    @property
    def kept(self) -> int:
        """How many of them will run."""
        return self.sync + self.coroutines - len(self.surplus)


class Pool:
    """Takes leases, runs them in `threads` threads or as coroutines, hands outcomes to the settler, wakes the claimer.

    Every lease that is taken has a place on the board until settled().
    """

    def __init__(self, entries: Any, threads: int, coroutines: int, stopping: Callable[[], bool]) -> None:
        self._free = list(entries)
        self._in_threads: dict[tuple[int, int], Any] = {}
        self._in_lane: dict[tuple[int, int], Any] = {}
        self._stopping = stopping
        self._todo: SimpleQueue[tuple[Lease, Any]] = SimpleQueue()
        self._ended: Mailbox[Outcome] = Mailbox()
        self._bell: Mailbox[None] = Mailbox()
        self._written: dict[tuple[int, int], Callable[[], object]] = {}
        self._watches: list[Watch] = []
        self._lane = Lane(coroutines, self._hand_over, stopping, self._asked_to_stop)
        self._coroutines = coroutines
        if registry.knows_coroutines():
            # Now, while it is clear what to do if there is no room for a thread.
            self._lane.open()
        #: the claimer is woken when no more than this many leases wait for a thread
        self.low_water = 0
        self._rung = False
        self.allowed = threads
        self._raised = threading.Condition()
        for number in range(threads):
            # Daemons: a job that never returns must not keep the process from leaving.
            threading.Thread(target=self._work, args=[number], name=f"job-{number + 1}", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Leases that no thread has taken yet."""
        return self._todo.qsize()

    @property
    def held(self) -> int:
        """Leases in hand: waiting, running, or ended and not settled."""
        return len(self._in_threads) + len(self._in_lane)

    @property
    def in_threads(self) -> int:
        """Leases that run in job threads or wait for one."""
        return _unended(self._in_threads)

    @property
    def places(self) -> int:
        """How many more coroutines may be claimed.

        None while a blocked loop has not begun those that it has, and none in a process that knows no coroutine.
        """
        idle = self._lane.waiting or not registry.knows_coroutines()
        return 0 if idle else self._coroutines - _unended(self._in_lane)

    @property
    def hurried(self) -> bool:
        """Whether more ends may come at any moment: leases wait for a thread, or coroutines run."""
        return bool(self.waiting or self._in_lane)

    @property
    def room(self) -> int:
        """How many more leases the board can hold."""
        return len(self._free)

    def allow(self, threads: int) -> None:
        """Let only the first `threads` threads take jobs; what runs goes on, and a thread that waits takes one more."""
        with self._raised:
            self.allowed = threads
            self._raised.notify_all()

    def take(self, leases: Sequence[Lease], threads_room: int, places: int) -> Taken:
        """Run `leases`: up to `places` of the coroutines, and up to `threads_room` of the others."""
        sync, surplus, mixed = 0, [], registry.knows_coroutines()
        for lease in leases:
            coroutine = mixed and is_coroutine(lease)
            sync += not coroutine
            if places <= 0 if coroutine else threads_room <= 0:
                surplus.append(lease)
            elif coroutine:
                places -= 1
                self._lane.submit(lease, self._hold(lease, self._in_lane))
            else:
                threads_room -= 1
                self._todo.put((lease, self._hold(lease, self._in_threads)))
        return Taken(sync, len(leases) - sync, surplus)

    def keys(self) -> set[tuple[int, int]]:
        """(job_id, fence) of every lease that is held now."""
        return {*self._in_threads, *self._in_lane}

    def settled(self, leases: Iterable[Lease]) -> None:
        """The ends of these leases are written: their places on the board are free."""
        for lease in leases:
            key = lease.job_id, lease.fence
            entry = self._in_threads.pop(key, None) or self._in_lane.pop(key, None)
            if entry is not None:
                entry.hold, entry.job_id = Hold.FREE, 0
                self._free.append(entry)
            if (free := self._written.pop(key, None)) is not None:
                free()

    def take_back(self) -> list[Lease]:
        """The leases that were not started; they will not be."""
        leases = self._lane.take_back()
        while True:
            try:
                lease, _entry = self._todo.get_nowait()
            except Empty:
                return leases
            leases.append(lease)

    def wake(self) -> None:
        """End the claimer's current or next wait(). Safe in a signal handler."""
        self._bell.put(None)

    def wait(self, seconds: float) -> None:
        """Return when there is something to do for the claimer, or after `seconds`."""
        self._bell.take(seconds)
        self._rung = False

    def ended(self, seconds: float) -> list[Outcome]:
        """Outcomes in the order they ended, as soon as there is one; [] after `seconds` without."""
        return self._ended.take(seconds)

    def enforce_limits(self) -> None:
        """Raise SoftTimeout in the threads whose job has run for too long."""
        for watch in self._watches:
            watch.enforce()

    def _hold(self, lease: Lease, where: dict[tuple[int, int], Any]) -> Any:
        entry = self._free.pop()
        entry.fence, entry.flags, entry.job_id = lease.fence, 0, lease.job_id
        entry.hold = Hold.WAITING
        where[lease.job_id, lease.fence] = entry
        return entry

    def _asked_to_stop(self, entry: Any) -> bool:
        return bool(entry.flags & (LOST | CANCEL)) or self._stopping()

    def _work(self, number: int) -> None:
        watch = Watch()
        self._watches.append(watch)
        while True:
            if number >= self.allowed:
                with self._raised:
                    self._raised.wait_for(lambda: number < self.allowed)
            lease, entry = self._todo.get()
            # From here on the job counts as started, whatever happens to this process.
            entry.hold = Hold.RUNNING
            self._ask_for_more()
            try:
                # Its own context: no time zone or language that it activates reaches the next job.
                run = Run(entry, watch, partial(self._asked_to_stop, entry), context := Context())
                outcome = context.run(perform, lease, run)
            except BaseException as error:
                outcome = Outcome(lease, Ending.FAILED, 0.0, error=error)
            if forked.is_forked():
                forked.leave(outcome.error)
            # From here on it did not kill this process, and if it returned it need not run again.
            outcome.note_on(entry)
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        if not outcome.ack_each:
            self._ended.put(outcome)
            self._ask_for_more()
            return
        free = threading.Event()
        self._hand_over(outcome, free.set)
        self._ask_for_more()
        free.wait()

    def _hand_over(self, outcome: Outcome, free: Callable[[], object]) -> None:
        if outcome.ack_each:
            self._written[outcome.key] = free
            self._ended.put(outcome)
        else:
            self._ended.put(outcome)
            free()

    def _ask_for_more(self) -> None:
        # Once per wait(): waking the claimer for every job would cost more than the jobs.
        if self._todo.qsize() <= self.low_water and not self._rung:
            self._rung = True
            self._bell.put(None)


def _unended(held: dict[tuple[int, int], Any]) -> int:
    # list() first: the settler takes entries out meanwhile.
    return sum(entry.hold <= Hold.RUNNING for entry in list(held.values()))
