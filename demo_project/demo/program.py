"""A command of manage.py as a subprocess."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from demo_project.demo.giving_up import moved, undisturbed
from demo_project.demo.speed import patient

STOP_SECONDS = 20


class Program:
    """`manage.py arguments...`, which can be started several times; the arguments `quietly` are not shown."""

    def __init__(self, *arguments: str, quietly: tuple[str, ...] = ("-v", "0")) -> None:
        self.arguments, self._quietly = arguments, quietly
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  lives as long as this object
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0
        #: whether kill() or abort() ended it
        self.killed = False

    @property
    def typed(self) -> str:
        """The command as a user would type it."""
        return f"$ manage.py {' '.join(self.arguments)}"

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it; its output on stderr goes to the log."""
        manage = str(Path(settings.BASE_DIR, "manage.py"))
        command = [sys.executable, manage, *self.arguments, *self._quietly]
        # In a process group of its own, so that Ctrl-C reaches only the demo, which then stops it gracefully.
        with undisturbed():
            self.process = subprocess.Popen(command, stderr=self.log, text=True, process_group=0)
        self.killed = False
        self.starts += 1
        moved()

    def running(self) -> bool:
        """Whether the process is running."""
        return self.process is not None and self.process.poll() is None

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended: for `seconds` at most, on a slow machine longer."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patient(seconds))
            moved()

    def stop(self) -> None:
        """Send SIGTERM and wait until the process has ended."""
        if self.process is not None and self.running():
            self.process.terminate()
            self.wait(STOP_SECONDS)
            if self.running():
                self.process.kill()

    def failed(self) -> str | None:
        """How it ended, with the last lines that it wrote, if it ended by itself and not well; else None."""
        if self.process is None or self.running() or self.process.returncode == 0 or self.killed:
            return None
        last = "\n    ".join(self.warnings()[-3:]) or "(it wrote nothing)"
        return f"{self.typed[2:]} ended with status {self.process.returncode}:\n    {last}"

    def abort(self) -> None:
        """Kill it with all processes that it has started."""
        if self.process is not None and self.running():
            self.killed = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.wait(STOP_SECONDS)

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.killed = True
        self.send(signal.SIGKILL)
        self.wait(STOP_SECONDS)

    def warnings(self) -> list[str]:
        """The contents of the log."""
        self.log.seek(0)
        return self.log.read().splitlines()
