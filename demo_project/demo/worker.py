"""A real runworker command as a subprocess, with a way to kill one of its children."""

import os
import signal
from pathlib import Path
from typing import NamedTuple

from demo_project.demo.program import Program
from demo_project.demo.speed import stretched
from jobqueue.models import Job, Worker

#: of its jobs, on a quiet machine and at most: a process that gets no processor time renews its leases late
LEASE_SECONDS, LEASE_SECONDS_MAX = 6, 30
PROCESSES = 2
DRAIN_SECONDS = 5


class Killed(NamedTuple):
    """A child that was killed, and how many leases it held just before."""

    name: str
    pid: int
    leases: int


class WorkerCommand(Program):
    """`manage.py runworker sources --drain`, which can be started several times."""

    def __init__(self) -> None:
        lease = f"{stretched(LEASE_SECONDS, LEASE_SECONDS_MAX):.0f}s"
        shape = ("--processes", str(PROCESSES), "--concurrency", "2", "--drain", "--lease", lease)
        super().__init__("runworker", "sources", *shape, quietly=("--no-reload", "-v", "0"))

    def kill_child(self) -> Killed | None:
        """Send SIGKILL to the child of this command that holds most leases; None if none holds any."""
        children = Worker.objects.filter(supervisor_pid=self.pid, stopped_at__isnull=True)
        held = [(Job.objects.leased().filter(locked_by=child.name).count(), child) for child in children]
        leases, child = max(held, key=lambda pair: pair[0], default=(0, None))
        if child is None or not leases or _parent(child.pid) not in (None, self.pid):
            return None
        os.kill(child.pid, signal.SIGKILL)
        return Killed(child.name, child.pid, leases)


def _parent(pid: int) -> int | None:
    """The parent of a process; None without /proc."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return None if not Path("/proc/self/stat").exists() else 0
