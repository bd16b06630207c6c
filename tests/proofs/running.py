"""Start, watch and break real runworker processes on the test database."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from django.db import connection
from django.utils import timezone

from jobqueue.models import Job
from tests.launch import ROOT, by_exec, launch
from tests.patience import patient
from tests.process.probe import nothing_is_open


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
        # At full size as an operator starts it.
        start = by_exec if os.environ.get("JOBQUEUE_PROVE") == "1" else launch
        self.process = start(["runworker", "--no-reload", *options], environment, self.log)

    def children(self) -> list[int]:
        """The process ids below the supervisor; the monitor is among them."""
        pid = self.process.pid
        with suppress(OSError):
            return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(patient(seconds))
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"did not stop within {seconds} s:\n{self.output()[-3000:]}") from None

    def kill_all(self) -> None:
        """SIGKILL to the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(patient(10))

    def freeze(self) -> None:
        """SIGSTOP to all its processes while none is within a transaction, whose locks would stay."""
        while True:
            os.killpg(self.process.pid, signal.SIGSTOP)
            wait_for(lambda: set(self._states()) <= {"T", "Z"}, 60, "the stop of all processes")
            if nothing_is_open(looks=3):
                return
            self.thaw()
            time.sleep(random.uniform(0.05, 0.2))

    def thaw(self) -> None:
        """SIGCONT to all its processes."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def _states(self) -> list[str]:
        """The states of the processes of its group, as /proc has them."""
        states = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
                states += [state] if group == str(self.process.pid) else []
        return states

    def output(self) -> str:
        """All log lines so far."""
        return self.log.read_text(errors="replace")

    def lines(self, event: str | None = None) -> list[list[str]]:
        """The evidence that the jobs wrote, as words."""
        text = self.evidence.read_text() if self.evidence.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [line for line in found if event is None or line[0] == event]


def wait_for(condition, seconds: float = 60.0, what: str | Callable[[], str] = "the condition"):
    """The first true value of condition(), looked at every 50 ms; AssertionError after `seconds`, see patient().

    `what` is the condition's name; or it is called if that has not come true, and tells why.
    """
    begun = time.monotonic()
    while not (value := condition()):
        if (waited := time.monotonic() - begun) > patient(seconds):
            name = what if isinstance(what, str) else what()
            raise AssertionError(f"{name} did not come true within {waited:.0f} s")
        time.sleep(0.05)
    return value


def unended(workers) -> str:
    """What a reader needs who asks why jobs have not ended: the jobs, what workers said last, and their stacks."""
    states = Counter(Job.objects.values_list("status", "locked_by", "attempts", "crashes"))
    rows = list(Job.objects.filter(status__in=(0, 1)).values("pk", "status", "locked_by", "run_at", "lock_until")[:10])
    for worker in workers:
        with suppress(ProcessLookupError):
            worker.process.send_signal(signal.SIGQUIT)
    time.sleep(2)
    said = "\n".join(worker.output()[-8000:] for worker in workers)
    return f"now {timezone.now()}\n{states}\n{rows}\n{said}"
