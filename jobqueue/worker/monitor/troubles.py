"""What is wrong with a worker, in its row: what its host is short of, a stall, commits that take long.

Free memory, file descriptors and disk space are read from a few small files of Linux with each heartbeat. On other
systems none of them is reported. Memory is that of the host and of the control groups that this process is in, versions
1 and 2.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jobqueue.base.payload import JSON
from jobqueue.maintenance import worker_rows

logger = logging.getLogger("jobqueue.worker")

#: a resource is short when less than this share of it is free, and less than so many bytes or descriptors
SHORT = {"memory": (0.05, 256 * 2**20), "descriptors": (0.1, 100), "disk": (0.02, 256 * 2**20)}
#: it stays short until so many times that much is free, so that a figure near the bound does not come and go
AGAIN = 1.5
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
#: limits of version 1 that mean no limit
_NO_LIMIT = 2**60


class Resource(NamedTuple):
    """How much of something is free."""

    name: str  # a key of SHORT
    free: int
    limit: int
    of: str  # "host", "cgroup", "process", or the path of a folder

    def is_short(self, *, was_short: bool) -> bool:
        share, most = SHORT[self.name]
        return self.free < min(share * self.limit, most) * (AGAIN if was_short else 1.0)


def short_of(pid: int, known: Collection[str] = ()) -> dict[str, Resource]:
    """What process `pid` of this host is short of, by name. `known`: what it was short of at the last look."""
    found: dict[str, Resource] = {}
    with suppress(OSError, ValueError, IndexError):
        for one in [*memory(), *descriptors(pid), *disk()]:
            least = found.get(one.name)
            if one.is_short(was_short=one.name in known) and (least is None or one.free < least.free):
                found[one.name] = one
    return found


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[Resource]:
    """The memory of the host, and of each control group with a limit that this process is in."""
    if not (proc / "meminfo").exists():
        return
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE))
    if "MemAvailable" in sizes:
        yield Resource("memory", int(sizes["MemAvailable"]) * 1024, int(sizes["MemTotal"]) * 1024, "host")
    groups = [line.split(":", 2) for line in _text(proc / "self" / "cgroup").splitlines()]
    for _, controllers, path in groups:
        if not controllers:
            yield from _in_groups(cgroups, path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            yield from _in_groups(cgroups / "memory", path, *names)


def _in_groups(root: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[Resource]:
    """The group and those around it: each may have a limit. Inside a container its own group is the root."""
    parts = path.strip("/").split("/") if path.strip("/") else []
    for length in range(len(parts), -1, -1):
        folder = root.joinpath(*parts[:length])
        most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
        if not (most.isdigit() and used.isdigit() and int(most) < _NO_LIMIT):
            continue
        # The kernel gives pages of files up before it kills a process.
        cached = re.findall(rf"^{prefix}(?:in)?active_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        free = int(most) - int(used) + sum(map(int, cached))
        yield Resource("memory", max(0, free), int(most), "cgroup")


def descriptors(pid: int, proc: Path = PROC) -> Iterator[Resource]:
    """The file descriptors of a process, and of the whole host."""
    if limit := re.search(r"^Max open files\s+(\d+)", _text(proc / str(pid) / "limits"), re.MULTILINE):
        with suppress(OSError):
            used = len(os.listdir(proc / str(pid) / "fd"))
            yield Resource("descriptors", max(0, int(limit[1]) - used), int(limit[1]), "process")
    numbers = _text(proc / "sys" / "fs" / "file-nr").split()
    if len(numbers) == 3:
        yield Resource("descriptors", max(0, int(numbers[2]) - int(numbers[0])), int(numbers[2]), "host")


def disk() -> Iterator[Resource]:
    """The disk of the folder for temporary files."""
    if not hasattr(os, "statvfs"):
        return
    folder = tempfile.gettempdir()
    found = os.statvfs(folder)
    if found.f_blocks:
        yield Resource("disk", found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, folder)


def _text(path: Path) -> str:
    """The contents of a small file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


#: a trouble that lasts is written again after this time, with the figures of that moment
AGAIN_SECONDS = 60.0
#: commits are slow if each of the last IN_A_ROW heartbeats took longer than this
COMMIT_SECONDS, IN_A_ROW = 0.5, 3


class Troubles:
    """One worker's. report() is called by one thread, with each heartbeat."""

    def __init__(self, using: str) -> None:
        self._using = using
        #: by name of the child: what its row says of a stall; set by another thread, as a whole
        self.stalled: Mapping[str, JSON] = {}
        #: by name of the child: what its row says, and when it was written
        self._written: dict[str, tuple[dict[str, JSON], float]] = {}
        self._commits: deque[float] = deque(maxlen=IN_A_ROW)
        self._commits_were_slow = False

    def note_commit(self, seconds: float) -> None:
        """Note how long the write of a heartbeat took with its commit."""
        self._commits.append(seconds)

    def report(self, children: Sequence[tuple[str, int]]) -> None:
        """Write what has changed. `children`: name and pid of each living one.

        Nothing is written for one without troubles.
        """
        stalled, slow = self.stalled, self._slow_commits()
        kept = {name: self._written[name] for name, _ in children if name in self._written}
        self._written = kept
        for name, pid in children:
            before, at = kept.get(name, ({}, 0.0))
            short = short_of(pid, before)
            found: dict[str, JSON] = {
                key: {"free": one.free, "limit": one.limit, "of": one.of} for key, one in short.items()
            }
            found |= slow
            if name in stalled:
                found["stalled"] = stalled[name]
            if found.keys() == before.keys() and (not found or time.monotonic() < at + AGAIN_SECONDS):
                continue
            worker_rows.note(name, troubles=found or None, using=self._using)
            self._written[name] = found, time.monotonic()
            for key in short.keys() - before.keys():
                logger.warning("%s is short of %s", name, _words(short[key]))

    def _slow_commits(self) -> dict[str, JSON]:
        """The fastest of the last commits, if that was slow: a single one may have waited for another session."""
        fastest = min(self._commits, default=0.0)
        slow = len(self._commits) == IN_A_ROW and fastest > COMMIT_SECONDS
        if slow and not self._commits_were_slow:
            logger.warning("the database takes %.0f ms to write and commit one heartbeat", 1000 * fastest)
        self._commits_were_slow = slow
        return {worker_rows.SLOW_COMMIT: {"ms": round(1000 * fastest)}} if slow else {}


def _words(one: Resource) -> str:
    if one.name == "descriptors":
        return f"file descriptors: {one.limit - one.free} of {one.limit} of the {one.of} are open"
    what = "memory" if one.name == "memory" else "disk space"
    return f"{what}: {one.free // 2**20} of {one.limit // 2**20} MB of {one.of} are free"
