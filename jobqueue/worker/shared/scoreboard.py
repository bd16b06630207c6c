"""Shared memory of supervisor, monitor and children: which child holds and runs which job, and what has to stop.

A child writes here before it starts a job, and how the job ended. The counters of its
probe are here too, but for those in counters.py. The memory outlives a child that dies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Annotated, Any, get_type_hints

from jobqueue.failures import dotted_path
from jobqueue.requested import REQUESTED_ENDS, Requested
from jobqueue.worker.shared.counters import (
    Int,
    Long,
    Numbers,
    RedoneCounts,
    RetryCounts,
    RetryMemory,
    Seconds,
    structure,
)
from jobqueue.worker.shared.wakeup_pipes import WakeupPipes


class State(IntEnum):
    """The state of a ProcessSlot."""

    EMPTY = 0  # no process; may be filled
    STARTING = 1
    RUNNING = 2
    DEAD = 3  # the process has ended and its leases are not settled yet


class Exit(IntEnum):
    """Why a child ended; CRASHED is the initial value, so a child that could not write a reason has crashed."""

    CRASHED = 0
    STOPPED = 1
    DONE = 2  # drained, quota reached, or idle long enough: not replaced
    RECYCLE = 3  # over its memory limit: replaced by a new process
    RELOAD = 4  # code has changed: the whole command starts again
    REFUSED = 5  # the database refuses what every worker needs: trying again is of no use
    RECYCLE_JOBS = 6  # has run enough jobs: replaced
    RECYCLE_TIME = 7  # has run long enough: replaced
    CROWDED = 8  # the system could not start its threads: tried again later
    RECYCLE_RELAY = 9  # threads of its relay hang in deliveries: replaced
    NOT_IMPORTED = 10  # a tasks.py cannot be imported: the worker does not start


class Stop(IntEnum):
    """What the supervisor asks of all other processes."""

    RUN = 0
    DRAIN = 1  # stop claiming, finish what runs, give the rest back
    LEAVE = 2  # give everything back


class Winding(IntEnum):
    """Whether a child may start jobs: it is killed as soon as the jobs that it runs have ended."""

    NO = 0
    ASKED = 1  # by the monitor
    ANSWERED = 2  # by the child: its main thread and its event loop work


class Hold(IntEnum):
    """How far a claimed job has come in its child."""

    FREE = 0  # no job
    WAITING = 1  # claimed; no thread has taken it
    RUNNING = 2  # its body may have begun
    RETURNED = 3  # its body returned; the result is here and not yet in the database
    OVER = 4  # its body ended in another way, or with a result too large to be kept here
    FAILED = 5  # its body failed; the error is here and the attempt not yet in the database
    REQUESTED = 6  # its body requested an end, which is here and not yet in the database


LOST, CANCEL, KILLED = 1, 2, 4
RESULT_BYTES, TOKEN_BYTES = 256, 16

#: a count that continues when a child is replaced
Total = Annotated[int, ctypes.c_int64, "total"]
Bytes = ctypes.Array[ctypes.c_ubyte]


@structure
class LeaseSlot(ctypes.Structure):
    """One lease that a child holds."""

    job_id: Long
    fence: Long
    hold: Int
    flags: Int
    token: Annotated[Bytes, ctypes.c_ubyte * TOKEN_BYTES]
    lease_seconds: Seconds  # for how long each renewal extends it
    lease_until: Seconds  # the lease is certainly held until then
    hard_until: Seconds  # the hard limit; 0: none
    overtime: Long  # the job that was beyond it when its process was killed; the slot may hold another one by then
    limited: Int  # 1: how many such jobs run at once is limited
    result_size: Int
    result: Annotated[Bytes, ctypes.c_ubyte * RESULT_BYTES]
    delay_seconds: Seconds  # before the job runs again; below 0: JOBQUEUE's back-off, or it does not
    final: Int  # 1: a failed job gets no other attempt
    requested: Int  # the place of the requested end in REQUESTED_ENDS

    def fill(self, job_id: int, fence: int, token: bytes, *, lease_seconds: float, lease_until: float) -> None:
        """Record a lease that waits for its run."""
        self.lease_seconds, self.lease_until, self.flags = lease_seconds, lease_until, 0
        self.overtime = 0
        # Not ctypes.memmove(), which releases the interpreter lock: another thread would run, twice for each job.
        memoryview(self.token).cast("B")[:] = token.ljust(TOKEN_BYTES, b"\0")
        self.fence, self.job_id = fence, job_id
        # Last: from here on the monitor reads the other fields.
        self.hold = Hold.WAITING

    @property
    def lock_token(self) -> bytes:
        return bytes(self.token)

    def renewed(self, job_id: int, fence: int, until: float) -> None:
        """Record that the lease is held until `until`, if this slot still holds that lease."""
        if (self.job_id, self.fence) == (job_id, fence):
            self.lease_until = max(self.lease_until, until)

    def keep_result(self, encoded: str | None) -> None:
        """Keep the encoded result of a body that returned, for the process that settles it; -1 bytes: no result."""
        raw = b"" if encoded is None else encoded.encode()
        if len(raw) > RESULT_BYTES:
            self.hold = Hold.OVER
            return
        self._keep(raw)
        if encoded is None:
            self.result_size = -1
        # Last: from here on the monitor may settle it.
        self.hold = Hold.RETURNED

    def keep_failure(self, words: str, *, delay_seconds: float | None, final: bool) -> None:
        """Keep the beginning of the error of a body that failed, and whether and when the job runs again."""
        self._keep_words(words, delay_seconds)
        self.final = int(final)
        self.hold = Hold.FAILED

    def keep_requested(self, requested: Requested) -> None:
        """Keep the end that a body has requested, and the beginning of its text."""
        self._keep_words(requested.text, requested.delay_seconds)
        self.requested = REQUESTED_ENDS.index(requested.end)
        self.hold = Hold.REQUESTED

    def kept_failure(self) -> str:
        """The error that was kept, as far as there was room."""
        return self._kept().decode(errors="ignore")

    def kept_requested(self) -> Requested:
        """The end that was kept, as if its own class had been raised, and no class of the project."""
        end = REQUESTED_ENDS[self.requested]
        return Requested(end, self.kept_failure(), dotted_path(end.error), self.kept_delay)

    @property
    def kept_delay(self) -> float | None:
        return self.delay_seconds if self.delay_seconds >= 0 else None

    def kept_result(self) -> str | None:
        return None if self.result_size < 0 else self._kept().decode()

    def _keep_words(self, words: str, delay_seconds: float | None) -> None:
        self._keep(words.encode(errors="replace")[:RESULT_BYTES])
        self.delay_seconds = -1.0 if delay_seconds is None else delay_seconds

    def _keep(self, raw: bytes) -> None:
        memoryview(self.result).cast("B")[: len(raw)] = raw
        self.result_size = len(raw)

    def _kept(self) -> bytes:
        return bytes(memoryview(self.result)[: self.result_size])


class RequestedCounts(ctypes.Structure):
    """How many runs ended as the job requested: a count for each of REQUESTED_ENDS, named after its outcome."""

    _fields_ = [(end.outcome.value, ctypes.c_int64) for end in REQUESTED_ENDS]


@structure
class ProcessSlot(RequestedCounts):
    """One child process, and its successors."""

    state: Int
    generation: Int
    pid: Long
    room: Int  # how many more jobs it would claim now; 0: waking it is of no use
    hot: Int  # 1: it looks at the queues again within some ms, whatever it finds now
    paused: Int  # stopped by a signal: its leases are not renewed
    exit: Int
    blameless: Int  # killed by the worker: its jobs are given back, not charged
    overtime: Int  # killed by the worker for jobs beyond their hard limit: only these are charged
    wait_status: Int
    winding: Int
    unlisted: Int  # 1: rows that it wrote at its start are gone, and it writes them again
    started: Seconds
    looked_at: Seconds  # when its main loop last looked for jobs, or saw that it needed none; 0: it has none
    claimed: Total
    finished: Total
    failed: Total
    lost: Total
    level: Int  # how many jobs it may run at once now
    ruled: Int  # 1: something is limited, paused or behind a breaker, as this process last saw
    breakers_open: Int  # circuit breakers that are not closed, as this process last saw
    locks_acquired: Total
    locks_failed: Total
    locks_contended: Total
    locks_reentries: Total
    locks_wait_us: Total
    connections_opened: Total
    connections_refused: Total
    connection_wait_us: Total

    @property
    def alive(self) -> bool:
        """Whether its process was started and its end was not noticed."""
        return self.state in (State.STARTING, State.RUNNING)


TOTALS = [
    *(end.outcome.value for end in REQUESTED_ENDS),
    *(name for name, hint in get_type_hints(ProcessSlot, include_extras=True).items() if hint == Total),
]


@structure
class Header(ctypes.Structure):
    """The state of the whole worker."""

    stop: Int
    ready: Int
    monitor_stop: Int
    alone: Int  # 1: a job waits for a process of its own
    database_down: Int
    reaped: Long
    gates_closed: Int  # 1: a claim has closed gates since the monitor last looked
    rules_turn: Long  # grows as the monitor sees that operators or breakers have changed something
    outbox_unrouted: Long  # events that waited for a route or a subscriber at the last look
    monitor_ticked_at: Seconds  # when a step of the monitor's work last ended
    renewed_at: Seconds  # when the monitor last renewed all leases
    database_down_since: Seconds  # 0: the database answers
    database_outages: Long  # how often the database became unreachable
    answers_since: Seconds  # when the database answered again after the last outage; 0: there was none

    def note_outage(self, since: float) -> None:
        """Record that the database is unreachable, and if that is new, since when."""
        if not self.database_down_since:
            self.database_down_since = since
            self.database_outages += 1
        self.database_down = 1


#: the longest text of stacks
ANSWER_BYTES = 65_536


@structure
class StackRequest(ctypes.Structure):
    """The monitor asks here where the threads of a child are; the child answers."""

    asked: Long  # grows with each question
    answered: Long  # the question that the text answers
    size: Long
    text: Annotated[Bytes, ctypes.c_ubyte * ANSWER_BYTES]

    @property
    def question(self) -> int:
        """The number of a question without an answer; 0: there is none."""
        asked = self.asked
        return asked if asked != self.answered else 0

    def ask(self) -> None:
        """Request the stacks of this process again."""
        self.asked += 1

    def write(self, question: int, text: bytes) -> None:
        """Answer a question. `text` has ANSWER_BYTES at most."""
        memoryview(self.text).cast("B")[: len(text)] = text
        self.size = len(text)
        # Last: from here on the monitor may read it.
        self.answered = question

    def answer(self) -> bytes | None:
        """The answer to the last question; None until it is there."""
        return None if self.question else bytes(memoryview(self.text)[: self.size])

    def clear(self) -> None:
        """Forget question and answer, for a new process."""
        self.asked = self.answered = self.size = 0


class Scoreboard:
    """The memory and typed views of it. Created by the supervisor before its first fork."""

    def __init__(self, processes: int, leases: int) -> None:
        parts: dict[str, Any] = {
            "header": Header,
            "slots": ProcessSlot * processes,
            "lease_slots": (LeaseSlot * leases) * processes,
            "redone": Numbers * (processes + 1),
            "retries": RetryMemory * processes,
            "stacks": StackRequest * processes,
        }
        whole: Any = type("Whole", (ctypes.Structure,), {"_fields_": list(parts.items())})
        # Memory that is not written costs nothing.
        memory = whole.from_buffer(mmap.mmap(-1, ctypes.sizeof(whole)))
        self.header: Header = memory.header
        self.header.monitor_ticked_at = self.header.renewed_at = time.monotonic()
        self.slots: list[ProcessSlot] = list(memory.slots)
        self.lease_slots: list[ctypes.Array[LeaseSlot]] = list(memory.lease_slots)
        #: redone transactions of each child, and of the monitor
        self.redone = [RedoneCounts(numbers) for numbers in memory.redone]
        #: runs and retries of each child
        self.retries = [RetryCounts(counts) for counts in memory.retries]
        self.stacks: list[StackRequest] = list(memory.stacks)
        self.wakeups = WakeupPipes(self.slots)
        # Not os.getppid() after a fork: the supervisor may have died by then.
        self.supervisor_pid = os.getpid()

    def fill(self, index: int) -> int:
        """Prepare slot `index` for a new process; returns its generation, 1 for the first."""
        slot, lease_slots = self.slots[index], self.lease_slots[index]
        generation = slot.generation + 1
        counts = {name: getattr(slot, name) for name in TOTALS}
        ctypes.memset(ctypes.addressof(slot), 0, ctypes.sizeof(slot))
        ctypes.memset(ctypes.addressof(lease_slots), 0, ctypes.sizeof(lease_slots))
        self.stacks[index].clear()
        slot.generation, slot.state = generation, State.STARTING
        for name, count in counts.items():
            setattr(slot, name, count)
        return generation

    def ask_to_register(self, indexes: Iterable[int]) -> None:
        """Let these children write again what they wrote at their start, those that have written it."""
        for index in indexes:
            if self.slots[index].state == State.RUNNING:
                self.slots[index].unlisted = 1

    def in_hand(self, index: int) -> dict[tuple[int, int], LeaseSlot]:
        """The lease slots of child `index` that hold a job, by (job_id, fence)."""
        return {(slot.job_id, slot.fence): slot for slot in self.lease_slots[index] if slot.hold}

    def alive(self) -> Iterator[ProcessSlot]:
        """The slots whose process was started and whose end was not noticed."""
        return (slot for slot in self.slots if slot.alive and slot.pid)
