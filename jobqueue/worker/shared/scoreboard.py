"""Shared memory between supervisor, monitor and children: who holds and runs what, and who is to stop.

A child writes what it starts before it starts it, and how it ended when it has ended, without a system call; when the
child dies, the memory stays.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from enum import IntEnum
from typing import Any

from jobqueue.worker.shared.wakeup_pipes import WakeupPipes


class State(IntEnum):
    """The life of one child's slot."""

    EMPTY = 0  # no process; may be filled
    STARTING = 1
    RUNNING = 2
    DEAD = 3  # the process is gone and its leases are not settled yet


class Exit(IntEnum):
    """Why a child came to an orderly end; CRASHED is what is found when it could not say."""

    CRASHED = 0
    STOPPED = 1
    DONE = 2  # drained, quota reached, idle long enough: not replaced
    RECYCLE = 3  # to be replaced by a fresh process: over its memory limit
    RELOAD = 4  # code has changed: the whole command starts again
    REFUSED = 5  # the database refuses what every worker needs: no use in trying again
    RECYCLE_JOBS = 6  # like RECYCLE: it has run enough jobs
    RECYCLE_TIME = 7  # like RECYCLE: it has lived long enough
    RECYCLE_RELAY = 9  # like RECYCLE: its relay hangs in deliveries
    CROWDED = 8  # the system had no room for its threads: to be tried again later


class Stop(IntEnum):
    """What the supervisor wants of everybody."""

    RUN = 0
    DRAIN = 1  # stop claiming, finish what runs, give the rest back
    LEAVE = 2  # give everything back


class Winding(IntEnum):
    """Whether a child is to begin nothing more, because it is to be killed when what it runs has ended."""

    NO = 0
    ASKED = 1  # by the monitor
    ANSWERED = 2  # by the child, whose main thread and event loop work


class Hold(IntEnum):
    """How far a claimed job has come in its child."""

    FREE = 0  # no job
    WAITING = 1  # claimed; no thread has taken it
    RUNNING = 2  # its body may have begun
    RETURNED = 3  # its body returned; the result is here and not yet in the database
    OVER = 4  # its body ended in another way, or with a result too large to keep here
    FAILED = 5  # its body failed; what it said is here and the attempt not yet in the database


LOST, CANCEL, OVERTIME = 1, 2, 4
RESULT_BYTES = 256


class LeaseSlot(ctypes.Structure):
    """One lease in the hand of a child, and what the monitor learnt about it."""

    lease_until: float
    _fields_ = [
        ("job_id", ctypes.c_int64),
        ("fence", ctypes.c_int64),
        ("hold", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("lease_until", ctypes.c_double),  # surely held until then, by the same clock as hard_until
        ("hard_until", ctypes.c_double),  # by the monotonic clock that all processes share; 0 = no limit
        ("result_size", ctypes.c_int32),
        ("result", ctypes.c_char * RESULT_BYTES),
        ("delay_seconds", ctypes.c_double),  # before the next attempt of one that failed; below 0 = as JOBQUEUE says
        ("final", ctypes.c_int32),  # 1: no other attempt is to follow one that failed
    ]

    def renewed(self, job_id: int, fence: int, until: float) -> None:
        """Its lease, if it is still this one, is held until then."""
        if (self.job_id, self.fence) == (job_id, fence):
            self.lease_until = max(self.lease_until, until)

    def keep_result(self, encoded: str | None) -> None:
        """The body has returned: keep its encoded result for whoever settles it. -1 bytes: there is none."""
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
        """The body has failed: keep the beginning of what it said, and what is to follow, for whoever settles it."""
        self._keep(words.encode(errors="replace")[:RESULT_BYTES])
        self.delay_seconds = -1.0 if delay_seconds is None else delay_seconds
        self.final = int(final)
        self.hold = Hold.FAILED

    def kept_failure(self) -> str:
        """What keep_failure() was given, as far as there was room."""
        return self._kept().decode(errors="ignore")

    def kept_result(self) -> str | None:
        """What keep_result() was given."""
        if self.result_size < 0:
            return None
        return self._kept().decode()

    def _keep(self, raw: bytes) -> None:
        if raw:
            ctypes.memmove(ctypes.addressof(self) + LeaseSlot.result.offset, raw, len(raw))
        self.result_size = len(raw)

    def _kept(self) -> bytes:
        return ctypes.string_at(ctypes.addressof(self) + LeaseSlot.result.offset, self.result_size)


class ProcessSlot(ctypes.Structure):
    """One child process."""

    _fields_ = [
        ("state", ctypes.c_int32),
        ("generation", ctypes.c_int32),
        ("pid", ctypes.c_int64),
        ("room", ctypes.c_int32),  # how many more jobs it would claim now; 0 = to wake it is of no use
        ("paused", ctypes.c_int32),  # stopped by a signal: its leases are not renewed
        ("exit", ctypes.c_int32),
        ("blameless", ctypes.c_int32),  # killed by us: what it ran is given back, not charged
        ("wait_status", ctypes.c_int32),
        ("winding", ctypes.c_int32),
        ("started", ctypes.c_double),
        ("claimed", ctypes.c_int64),
        ("finished", ctypes.c_int64),
        ("failed", ctypes.c_int64),
        ("lost", ctypes.c_int64),
        ("level", ctypes.c_int32),  # how many jobs it may run at once now
        ("queues_slowed", ctypes.c_int32),  # queues with a task whose runs fail, tried one job at a time
        ("locks_acquired", ctypes.c_int64),
        ("locks_failed", ctypes.c_int64),
        ("locks_contended", ctypes.c_int64),
        ("locks_reentered", ctypes.c_int64),
        ("locks_wait_us", ctypes.c_int64),
    ]


#: what goes on counting when a child is replaced
SUMS = ["claimed", "finished", "failed", "lost"]
SUMS += ["locks_acquired", "locks_failed", "locks_contended", "locks_reentered", "locks_wait_us"]


class Header(ctypes.Structure):
    """For everybody."""

    _fields_ = [
        ("stop", ctypes.c_int32),
        ("ready", ctypes.c_int32),
        ("monitor_stop", ctypes.c_int32),
        ("database_down", ctypes.c_int32),
        ("reaped", ctypes.c_int64),
        # By the monotonic clock:
        ("monitor_ticked_at", ctypes.c_double),  # some step of the monitor's work ended
        ("renewed_at", ctypes.c_double),  # it had looked at all leases
        ("database_down_since", ctypes.c_double),  # 0 = it answers
    ]


class Scoreboard:
    """The memory and typed views of it. Created by the supervisor before its first fork."""

    def __init__(self, processes: int, lease_slots: int) -> None:
        lease_slots_size = ctypes.sizeof(LeaseSlot) * lease_slots
        size = ctypes.sizeof(Header) + processes * (ctypes.sizeof(ProcessSlot) + lease_slots_size)
        self._memory = mmap.mmap(-1, size)
        offset = ctypes.sizeof(Header)
        self.header: Any = Header.from_buffer(self._memory)
        self.header.monitor_ticked_at = self.header.renewed_at = time.monotonic()
        self.slots: list[Any] = []
        self.lease_slots: list[Any] = []
        for _ in range(processes):
            self.slots.append(ProcessSlot.from_buffer(self._memory, offset))
            offset += ctypes.sizeof(ProcessSlot)
            self.lease_slots.append((LeaseSlot * lease_slots).from_buffer(self._memory, offset))
            offset += lease_slots_size
        self.wakeups = WakeupPipes(self.slots)
        # Not asked with getppid() after a fork: by then it may have died.
        self.supervisor_pid = os.getpid()

    def fill(self, index: int) -> int:
        """Prepare slot `index` for a new process; its generation, 1 for the first."""
        slot = self.slots[index]
        generation = slot.generation + 1
        counts = {name: getattr(slot, name) for name in SUMS}
        ctypes.memset(ctypes.addressof(slot), 0, ctypes.sizeof(ProcessSlot))
        ctypes.memset(ctypes.addressof(self.lease_slots[index]), 0, ctypes.sizeof(self.lease_slots[index]))
        slot.generation, slot.state = generation, State.STARTING
        for name, count in counts.items():
            setattr(slot, name, count)
        return int(generation)

    def in_hand(self, index: int) -> dict[tuple[int, int], Any]:
        """The lease_slots of child `index` that hold a job, by (job_id, fence)."""
        return {
            (lease_slot.job_id, lease_slot.fence): lease_slot
            for lease_slot in self.lease_slots[index]
            if lease_slot.hold
        }
