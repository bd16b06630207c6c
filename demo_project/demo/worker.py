"""A real runworker command as a subprocess, and the end of one of its children."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from django.conf import settings

from jobqueue.models import Job, Worker

LEASE = "6s"
PROCESSES = 2
STOP_SECONDS = 20
DRAIN_SECONDS = 5


class Killed(NamedTuple):
    """A child that was killed, and how many leases it held just before."""

    name: str
    pid: int
    leases: int


class WorkerCommand:
    """`manage.py runworker sources --drain`, started again as often as asked."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  lives as long as this object
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0

    @property
    def arguments(self) -> list[str]:
        """What to type after manage.py."""
        return [
            "runworker",
            "sources",
            "--processes",
            str(PROCESSES),
            "--concurrency",
            "2",
            "--drain",
            "--lease",
            LEASE,
        ]

    def start(self) -> None:
        """Run it; its warnings go to the log."""
        command = [sys.executable, str(Path(settings.BASE_DIR, "manage.py")), *self.arguments, "--no-reload", "-v", "0"]
        # A process group of its own: Ctrl-C ends the demo, which then stops it once and gracefully.
        self.process = subprocess.Popen(command, stderr=self.log, text=True, process_group=0)
        self.starts += 1

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process is not None and self.process.poll() is None

    def wait(self) -> None:
        """Let it find out that nothing is left to do."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(DRAIN_SECONDS)

    def stop(self) -> None:
        """SIGTERM, and wait for its graceful end."""
        if self.process is not None and self.running():
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
            if self.running():
                self.process.kill()

    def kill_child(self) -> Killed | None:
        """SIGKILL the child that holds most leases; None if none holds any. Only a child of our own command."""
        assert self.process is not None
        children = Worker.objects.filter(supervisor_pid=self.process.pid, stopped_at__isnull=True)
        held = [(Job.objects.leased().filter(locked_by=child.name).count(), child) for child in children]
        leases, child = max(held, key=lambda pair: pair[0], default=(0, None))
        if child is None or not leases or _parent(child.pid) not in (None, self.process.pid):
            return None
        os.kill(child.pid, signal.SIGKILL)
        return Killed(child.name, child.pid, leases)

    def warnings(self) -> list[str]:
        """What it had to say."""
        self.log.seek(0)
        return self.log.read().splitlines()


def _parent(pid: int) -> int | None:
    """The parent of a process; None where /proc does not tell."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return None if not Path("/proc/self/stat").exists() else 0
