"""Start, watch and break real runworker processes on the test database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from django.db import connection

ROOT = Path(__file__).parents[2]


class RunningWorker:
    """A runworker command in a process group of its own."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.evidence = folder / "evidence"
        self.log = folder / "log"
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.proofs.settings",
            "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
            "JOBQUEUE_TEST_LOG": str(self.evidence),
            "PYTHONPATH": str(ROOT),
            **(env or {}),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "runworker", "--no-reload", *options],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def children(self) -> list[int]:
        """The process ids below the supervisor; the keeper is among them."""
        pid = self.process.pid
        with suppress(OSError):
            return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"did not stop within {seconds} s:\n{self.output()[-3000:]}") from None

    def kill_all(self) -> None:
        """SIGKILL to the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def output(self) -> str:
        """All log lines so far."""
        return self.log.read_text(errors="replace")

    def lines(self, event: str | None = None) -> list[list[str]]:
        """The evidence that the jobs wrote, as words."""
        text = self.evidence.read_text() if self.evidence.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [line for line in found if event is None or line[0] == event]


def wait_for(condition, seconds: float = 60.0, what: str = "the condition"):
    """The first true value of condition(), looked at every 50 ms."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
        time.sleep(0.05)
    return value
