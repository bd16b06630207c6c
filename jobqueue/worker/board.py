"""Shared memory between supervisor, keeper and children: who runs what, and who is to stop.

A child writes what it starts before it starts it, without a system call; when it dies, the memory stays.
"""

from __future__ import annotations

import ctypes
import mmap
from enum import IntEnum
from typing import Any


class State(IntEnum):
    """The life of one child's region."""

    EMPTY = 0  # no process; may be filled
    STARTING = 1
    RUNNING = 2
    DEAD = 3  # the process is gone and its leases are not settled yet


class Exit(IntEnum):
    """Why a child came to an orderly end; CRASHED is what is found when it could not say."""

    CRASHED = 0
    STOPPED = 1
    DONE = 2  # drained, quota reached, idle long enough: not replaced
    RECYCLE = 3  # to be replaced by a fresh process
    RELOAD = 4  # code has changed: the whole command starts again
    REFUSED = 5  # the database refuses what every worker needs: no use in trying again


class Stop(IntEnum):
    """What the supervisor wants of everybody."""

    RUN = 0
    DRAIN = 1  # stop claiming, finish what runs, give the rest back
    LEAVE = 2  # give everything back


LOST, CANCEL = 1, 2


class Slot(ctypes.Structure):
    """One job thread: the job it runs (0 = none), and what the keeper learnt about that lease."""

    _fields_ = [
        ("job_id", ctypes.c_int64),
        ("fence", ctypes.c_int64),
        ("flags", ctypes.c_int32),
        ("started", ctypes.c_double),
    ]


class Region(ctypes.Structure):
    """One child process."""

    _fields_ = [
        ("state", ctypes.c_int32),
        ("generation", ctypes.c_int32),
        ("pid", ctypes.c_int64),
        ("paused", ctypes.c_int32),  # stopped by a signal: its leases are not renewed
        ("exit", ctypes.c_int32),
        ("blameless", ctypes.c_int32),  # killed by us: what it ran is given back, not charged
        ("wait_status", ctypes.c_int32),
        ("started", ctypes.c_double),
        ("claimed", ctypes.c_int64),
        ("finished", ctypes.c_int64),
        ("failed", ctypes.c_int64),
        ("lost", ctypes.c_int64),
    ]


class Header(ctypes.Structure):
    """For everybody."""

    _fields_ = [
        ("stop", ctypes.c_int32),
        ("ready", ctypes.c_int32),
        ("keeper_stop", ctypes.c_int32),
        ("database_down", ctypes.c_int32),
        ("reaped", ctypes.c_int64),
    ]


class Board:
    """The memory and typed views of it. Created by the supervisor before its first fork."""

    def __init__(self, processes: int, threads: int) -> None:
        slots_size = ctypes.sizeof(Slot) * threads
        size = ctypes.sizeof(Header) + processes * (ctypes.sizeof(Region) + slots_size)
        self._memory = mmap.mmap(-1, size)
        offset = ctypes.sizeof(Header)
        self.header: Any = Header.from_buffer(self._memory)
        self.regions: list[Any] = []
        self.slots: list[Any] = []
        for _ in range(processes):
            self.regions.append(Region.from_buffer(self._memory, offset))
            offset += ctypes.sizeof(Region)
            self.slots.append((Slot * threads).from_buffer(self._memory, offset))
            offset += slots_size

    def fill(self, index: int) -> int:
        """Prepare region `index` for a new process; its generation, 1 for the first."""
        region = self.regions[index]
        generation = region.generation + 1
        counts = region.claimed, region.finished, region.failed, region.lost
        ctypes.memset(ctypes.addressof(region), 0, ctypes.sizeof(Region))
        ctypes.memset(ctypes.addressof(self.slots[index]), 0, ctypes.sizeof(self.slots[index]))
        region.generation, region.state = generation, State.STARTING
        region.claimed, region.finished, region.failed, region.lost = counts
        return int(generation)

    def running_jobs(self, index: int) -> dict[int, int]:
        """job_id -> fence of what the threads of child `index` run, as written before each start."""
        return {slot.job_id: slot.fence for slot in self.slots[index] if slot.job_id}
