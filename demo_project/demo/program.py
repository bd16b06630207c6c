"""A command of manage.py as a subprocess of the demo."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from django.conf import settings

STOP_SECONDS = 20


class Program:
    """`manage.py arguments...`, started as often as asked; `quietly` is added but not shown."""

    def __init__(self, *arguments: str, quietly: tuple[str, ...] = ("-v", "0")) -> None:
        self.arguments, self._quietly = arguments, quietly
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  lives as long as this object
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0

    @property
    def typed(self) -> str:
        """What one would type."""
        return f"$ manage.py {' '.join(self.arguments)}"

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Run it; its warnings go to the log."""
        manage = str(Path(settings.BASE_DIR, "manage.py"))
        command = [sys.executable, manage, *self.arguments, *self._quietly]
        # A process group of its own: Ctrl-C ends the demo, which then stops it once and gracefully.
        self.process = subprocess.Popen(command, stderr=self.log, text=True, process_group=0)
        self.starts += 1

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process is not None and self.process.poll() is None

    def wait(self, seconds: float) -> None:
        """Let it end by itself."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    def stop(self) -> None:
        """SIGTERM, and wait for its graceful end."""
        if self.process is not None and self.running():
            self.process.terminate()
            self.wait(STOP_SECONDS)
            if self.running():
                self.process.kill()

    def send(self, number: int) -> None:
        """A signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        self.send(signal.SIGKILL)
        self.wait(STOP_SECONDS)

    def warnings(self) -> list[str]:
        """What it had to say."""
        self.log.seek(0)
        return self.log.read().splitlines()
