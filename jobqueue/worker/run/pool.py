"""The job threads and the event loop of one child process, and the calls that wait for a thread."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from jobqueue.gates import declared
from jobqueue.gates.limits import limits_at
from jobqueue.gates.rules import NO_RULES
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.worker.run import job_fork
from jobqueue.worker.run.attempt import Ending, Outcome, outages_of
from jobqueue.worker.run.batch import calls_of
from jobqueue.worker.run.coroutines import CoroutineRunner
from jobqueue.worker.run.perform import Run, is_coroutine, perform
from jobqueue.worker.run.timeouts import Together, Watch
from jobqueue.worker.shared.scoreboard import CANCEL, LOST, Hold, LeaseSlot

T = TypeVar("T")
Held: TypeAlias = dict[tuple[int, int], LeaseSlot]

#: a job waits so long at most for a failure to be recorded: longer than a database that can be reached needs
RECORD_SECONDS = 5.0
STALLED_SECONDS = 1.0  # jobs claimed ahead that wait this long are given back: another child may have a free thread


class Mailbox(Generic[T]):
    """Any thread or signal handler puts items, and one thread takes them.

    Not SimpleQueue.get(timeout=): before Python 3.13 it waits for ever if a signal interrupts it as its time runs out.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self._filled = threading.Lock()
        self._filled.acquire()

    def put(self, *items: T) -> None:
        """Add `items` and wake the thread that waits. Safe in a signal handler."""
        for item in items:
            self._items.put(item)
        # It is released already: the next take() finds these items, too.
        with suppress(RuntimeError):
            self._filled.release()

    def take(self, seconds: float) -> list[T]:
        """Return all items as soon as there is one; [] after `seconds`."""
        deadline = time.monotonic() + seconds
        while self._filled.acquire(timeout=max(0.0, deadline - time.monotonic())):
            if found := self._all():
                return found
        return self._all()

    def _all(self) -> list[T]:
        found: list[T] = []
        with suppress(Empty):
            while True:
                found.append(self._items.get_nowait())
        return found


@dataclass(frozen=True, slots=True)
class Accepted:
    """How many leases of a claim a child accepted, by kind, and the surplus."""

    sync: int
    coroutines: int
    surplus: list[Lease]  # of both kinds; these are given back
    calls: int  # how many calls run the sync ones
    alone: int  # how many of the sync ones share no call

    @property
    def kept(self) -> int:
        """How many of them will run."""
        return self.sync + self.coroutines - len(self.surplus)


class Call(NamedTuple):
    """Leases that run together in one thread, their slots, and since when they wait (monotonic)."""

    leases: list[Lease]
    slots: list[LeaseSlot]
    since: float

    @property
    def is_limited(self) -> bool:
        """Whether it has a slot of a limit, for which other jobs wait until it has run."""
        # No generator: this runs for every job.
        for lease in self.leases:  # noqa: SIM110
            if lease.slot is not None:
                return True
        return False


class CallQueue:
    """The calls that wait for a job thread. The threads take the oldest call, those with a slot of a limit first.

    The child's main thread adds calls and takes back the newest ones.
    """

    def __init__(self) -> None:
        # One turn for each call: a thread that has taken a turn finds a call, so no lock is needed.
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._limited: deque[Call] = deque()
        self._others: deque[Call] = deque()

    def __len__(self) -> int:
        return self._turns.qsize()

    def add(self, call: Call) -> None:
        """Add a call behind all others of its kind."""
        (self._limited if call.is_limited else self._others).append(call)
        self._turns.put(None)

    def next(self) -> Call:
        """Wait for a call, and return the one whose turn it is."""
        self._turns.get()
        while True:
            # Others may take the last limited one in between; then there is one among the others, or a new limited one.
            try:
                return (self._limited or self._others).popleft()
            except IndexError:
                continue

    def oldest_seconds(self) -> float:
        """Seconds that the call which has waited for longest has waited; 0 if none waits."""
        waited = 0.0
        for calls in (self._limited, self._others):
            with suppress(IndexError):
                waited = max(waited, time.monotonic() - calls[0].since)
        return waited

    def take_back(self, keep: int = 0) -> list[Lease]:
        """Remove all calls but the first `keep`; returns their leases, which do not run."""
        leases: list[Lease] = []
        with suppress(Empty):
            while len(self) > keep:
                self._turns.get_nowait()
                leases += self._last().leases
        return leases

    def _last(self) -> Call:
        while True:
            for calls in (self._others, self._limited):
                with suppress(IndexError):
                    return calls.pop()


class UnrecordedFailures:
    """Failures of dependencies that this process has met and that are not yet recorded by their circuit breakers.

    Jobs that were claimed ahead wait here meanwhile. Else a child would run all of them during an outage: each takes
    less time than the record of the first one.
    """

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._changed = threading.Condition()

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Note the outages among these runs, before the settler has them."""
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if failed and (found := outages_of(failed)):
            with self._changed:
                self._failures += Counter(found)

    def recorded(self, outages: Sequence[str]) -> None:
        """Let jobs go on: the breakers know of these outages, or could not be told."""
        if outages:
            with self._changed:
                self._failures -= Counter(outages)
                self._changed.notify_all()

    def wait(self, leases: Iterable[Lease]) -> None:
        """Return when no failure of the services that these jobs need is being recorded, or after RECORD_SECONDS."""
        if self._failures:
            names = {declared.needed_by(lease) for lease in leases}
            with self._changed:
                self._changed.wait_for(lambda: names.isdisjoint(self._failures), RECORD_SECONDS)


class Pool:
    """Runs leases in `threads` threads or as coroutines, passes outcomes to the settler, and wakes the claimer.

    Every lease that it takes has a slot on the scoreboard until settled().
    """

    def __init__(self, slots: Iterable[LeaseSlot], threads: int, coroutines: int, stopping: Callable[[], bool]) -> None:
        self._free = list(slots)
        self._in_threads: Held = {}
        self._beside: Held = {}  # of a call all but its first lease
        self._on_loop: Held = {}
        self._stopping = stopping
        self.unkept: Callable[[], bool] = lambda: False  # whether the monitor has stopped renewing leases
        self.rules = NO_RULES  # which jobs may not start although they are claimed
        self.unrecorded = UnrecordedFailures()
        self._todo = CallQueue()
        self._ended: Mailbox[Outcome] = Mailbox()
        self._wakeups: Mailbox[None] = Mailbox()
        self._written: dict[tuple[int, int], Callable[[], object]] = {}
        self._watches: list[Watch] = []
        self._refused: Mailbox[Lease] = Mailbox()
        self._runner = CoroutineRunner(coroutines, self._hand_over, self._fit, stopping, self._asked_to_stop)
        self._coroutines = coroutines
        if registry.knows_coroutines():
            # Here, because the child can still report that the system has no room for a thread.
            self._runner.open()
        self.low_water = 0  # the claimer is woken when no more than this many calls wait for a thread
        self._woken = False
        self.allowed = threads
        self._busy_since = [0.0] * threads  # when each thread began its current call; 0 while it runs nothing
        self._begin_by: dict[tuple[int, int], float] = {}
        self._raised = threading.Condition()
        for number in range(threads):
            # Daemons: a job that never returns must not keep the process from ending.
            threading.Thread(target=self._work, args=[number], name=f"job-{number + 1}", daemon=True).start()

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return len(self._todo)

    @property
    def moving(self) -> int:
        """How many threads are free or have begun their call a moment ago: others may run long."""
        since = time.monotonic() - STALLED_SECONDS / 2
        return sum(not busy or busy > since for busy in self._busy_since[: self.allowed])

    @property
    def held(self) -> int:
        """How many leases the child holds: waiting, running, or ended and not settled."""
        return len(self._in_threads) + len(self._beside) + len(self._on_loop)

    @property
    def in_threads(self) -> int:
        """How many calls run in job threads, plus the leases that wait for one."""
        waiting = sum(slot.hold == Hold.WAITING for slot in list(self._beside.values())) if self._beside else 0
        return _unended(self._in_threads) + waiting

    @property
    def places(self) -> int:
        """How many more coroutines may be claimed.

        0 while a blocked loop has not begun its last ones, and in a process without coroutine tasks.
        """
        idle = self._runner.waiting or not registry.knows_coroutines()
        return 0 if idle else self._coroutines - _unended(self._on_loop)

    @property
    def hurried(self) -> bool:
        """Whether more outcomes may follow at any moment: leases wait for a thread, or coroutines run."""
        return bool(self.waiting or self._on_loop)

    @property
    def room(self) -> int:
        """How many more leases the scoreboard can hold."""
        return len(self._free)

    def allow(self, threads: int) -> None:
        """Let only the first `threads` threads take jobs. Running jobs continue; a waiting thread takes one more."""
        with self._raised:
            self.allowed = threads
            self._raised.notify_all()

    def take(self, leases: Sequence[Lease], threads_room: int, places: int, claimed_at: float) -> Accepted:
        """Run `leases` of one queue: up to `places` coroutines, and the others in up to `threads_room` calls.

        `claimed_at` (monotonic) is not later than the moment at which their leases began.
        """
        sync, surplus = list(leases), []
        limited = bool(leases) and limits_at(leases[0].queue, self.rules).most is not None
        hold = partial(self._hold, claimed_at=claimed_at, limited=limited)
        if registry.knows_coroutines():
            sync = [lease for lease in leases if not is_coroutine(lease)]
            coroutines = [lease for lease in leases if is_coroutine(lease)] if len(sync) < len(leases) else []
            for lease in coroutines[: max(0, places)]:
                self._runner.submit(lease, hold(lease, self._on_loop))
            surplus += coroutines[max(0, places) :]
        calls, alone = calls_of(sync)
        for call in calls[: max(0, threads_room)]:
            slots = [hold(call[0], self._in_threads), *(hold(lease, self._beside) for lease in call[1:])]
            # Not `claimed_at`: after a slow claim, all of its jobs would be given back.
            self._todo.add(Call(call, slots, time.monotonic()))
        surplus += [lease for call in calls[max(0, threads_room) :] for lease in call]
        return Accepted(len(sync), len(leases) - len(sync), surplus, len(calls), alone)

    def keys(self) -> set[tuple[int, int]]:
        """(job_id, fence) of every lease that the child holds."""
        return {*self._in_threads, *self._beside, *self._on_loop}

    def settled(self, leases: Iterable[Lease]) -> None:
        """Free the slots of these leases: their outcomes are written."""
        for lease in leases:
            key = lease.job_id, lease.fence
            for held in (self._in_threads, self._on_loop, self._beside):
                if (slot := held.pop(key, None)) is not None:
                    slot.hold, slot.job_id = Hold.FREE, 0
                    self._free.append(slot)
                    break
            self._begin_by.pop(key, None)
            if (free := self._written.pop(key, None)) is not None:
                free()

    def loop_runs(self) -> bool:
        """Whether the event loop has answered an earlier call of this method: no coroutine blocks it."""
        return self._runner.answers()

    def take_back(self) -> list[Lease]:
        """Remove and return the leases that were not started."""
        return self._runner.take_back() + self._todo.take_back()

    def take_back_late(self, run_seconds: float) -> list[Lease]:
        """Remove and return unstarted leases that have waited for long or will, so that other children can run them.

        All go if the oldest has waited for STALLED_SECONDS. If jobs run for `run_seconds` each, and the list would take
        too long, only its beginning is kept.
        """
        leases = self._runner.take_back() if self._runner.oldest_seconds() >= STALLED_SECONDS else []
        if self._todo.oldest_seconds() >= STALLED_SECONDS:
            return leases + self._todo.take_back()
        if len(self._todo) * run_seconds > STALLED_SECONDS * self.allowed:
            leases += self._todo.take_back(keep=int(STALLED_SECONDS / 2 * self.moving / run_seconds))
        return leases

    def take_refused(self) -> list[Lease]:
        """Remove and return the leases whose turn came when they must not run any more."""
        return self._refused.take(0)

    def wake(self) -> None:
        """End the claimer's current or next wait(). Safe in a signal handler."""
        self._wakeups.put(None)

    def wait(self, seconds: float) -> None:
        """Return when the claimer has something to do, or after `seconds`."""
        self._wakeups.take(seconds)
        self._woken = False

    def ended(self, seconds: float) -> list[Outcome]:
        """Return outcomes in their order, as soon as there is one; [] after `seconds`."""
        return self._ended.take(seconds)

    def enforce_limits(self) -> None:
        """Raise SoftTimeout in the threads whose call has run for too long."""
        for watch in self._watches:
            watch.enforce()

    def _hold(self, lease: Lease, where: Held, *, claimed_at: float, limited: bool) -> LeaseSlot:
        slot = self._free.pop()
        until = claimed_at + (lease.lock_until - lease.locked_at).total_seconds()
        # Before it is filled, for the monitor reads it then.
        slot.limited = limited or lease.slot is not None
        slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=lease.lease_seconds, lease_until=until)
        if lease.expires_at is not None:
            self._begin_by[lease.job_id, lease.fence] = (
                claimed_at + (lease.expires_at - lease.locked_at).total_seconds()
            )
        where[lease.job_id, lease.fence] = slot
        return slot

    def _asked_to_stop(self, slot: LeaseSlot) -> bool:
        lapsed = time.monotonic() > slot.lease_until and self.unkept()
        return lapsed or bool(slot.flags & (LOST | CANCEL)) or self._stopping()

    def _fit(self, lease: Lease, slot: LeaseSlot) -> bool:
        """Whether `lease` may start; if not, it will be given back.

        It may not if it has lapsed, because another worker may run it; if it was lost or canceled; if it was
        paused meanwhile, or its breaker opened; or if its expires_at has passed: the next claim then ends the job.
        """
        begin_by = self._begin_by.get((lease.job_id, lease.fence), math.inf) if self._begin_by else math.inf
        held = time.monotonic() < min(slot.lease_until, begin_by) and not slot.flags & (LOST | CANCEL)
        if held and (self.rules is NO_RULES or not self.rules.shuts(lease)):
            return True
        self._refused.put(lease)
        self.wake()
        return False

    def _next(self) -> tuple[list[Lease], list[LeaseSlot]]:
        """Wait for the next call; returns it without the leases that must not start."""
        while True:
            call = self._todo.next()
            self.unrecorded.wait(call.leases)
            fit = [pair for pair in zip(call.leases, call.slots, strict=True) if self._fit(*pair)]
            if fit:
                return [lease for lease, _ in fit], [slot for _, slot in fit]

    def _work(self, number: int) -> None:
        watch = Watch()
        self._watches.append(watch)
        while True:
            if number >= self.allowed:
                with self._raised:
                    self._raised.wait_for(lambda: number < self.allowed)
            self._busy_since[number] = 0.0
            leases, slots = self._next()
            self._busy_since[number] = time.monotonic()
            # From here on the jobs count as started, even if this process dies.
            for slot in slots:
                slot.hold = Hold.RUNNING
            self._ask_for_more()
            outcomes = self._run(leases, slots, watch)
            if job_fork.is_forked():
                job_fork.leave(next((outcome.error for outcome in outcomes if outcome.error is not None), None))
            # From here on they are not charged if this process dies, and jobs that returned do not run again.
            list(map(Outcome.note_on, outcomes, slots))
            self._end(outcomes)
            del outcomes  # an idle thread would keep an error, and the variables of the job that raised it

    def _run(self, leases: list[Lease], slots: list[LeaseSlot], watch: Watch) -> list[Outcome]:
        slot = slots[0] if len(slots) == 1 else Together(slots)
        try:
            # A context of its own: a time zone or language that the job activates must not reach the next job.
            run = Run(slot, watch, partial(self._asked_to_stop, slots[0]), context := Context())
            return context.run(perform, leases, run)
        except BaseException as error:
            return [Outcome(lease, Ending.FAILED, 0.0, error=error) for lease in leases]

    def _end(self, outcomes: list[Outcome]) -> None:
        if not outcomes[0].ack_each:
            self.unrecorded.add(outcomes)
            self._ended.put(*outcomes)
            self._ask_for_more()
            return
        written = [threading.Event() for _ in outcomes]
        for outcome, event in zip(outcomes, written, strict=True):
            self._hand_over(outcome, event.set)
        self._ask_for_more()
        for event in written:
            event.wait()

    def _hand_over(self, outcome: Outcome, free: Callable[[], object]) -> None:
        self.unrecorded.add([outcome])
        if outcome.ack_each:
            self._written[outcome.key] = free
        self._ended.put(outcome)
        if not outcome.ack_each:
            free()

    def _ask_for_more(self) -> None:
        # Once for each wait(): waking the claimer for every job would cost more than the jobs.
        if len(self._todo) <= self.low_water and not self._woken:
            self._woken = True
            self._wakeups.put(None)


def _unended(held: Held) -> int:
    # list(): the settler removes some meanwhile.
    return sum(slot.hold <= Hold.RUNNING for slot in list(held.values()))
