"""Processes that add jobs at a rate, and what they have measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from django.db import connection

from tests.launch import ROOT
from tests.patience import patient


@dataclass(frozen=True)
class Added:
    """The seconds of each enqueue, and those of the longest statement."""

    took: list[float]
    longest: float


class Producers:
    """Started with run(), ended by themselves."""

    def __init__(self, folder):
        self._folder = folder
        self._started = []

    def run(self, processes, per_second, seconds, job_seconds, look):
        """So many processes offer `per_second` together; look() is called all the time until they have ended."""
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.proofs.schedules.settings",
            "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "tests.proofs.schedules.produce"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        paths = [self._folder / f"added-{number}" for number in range(processes)]
        each = (str(per_second / processes), str(seconds), str(job_seconds))
        started = [subprocess.Popen([*command, *each, str(path)], cwd=ROOT, env=environment, **pipes) for path in paths]
        self._started += started
        for process in started:
            assert process.stdout.readline() == "begun\n", process.communicate()[1][-2000:]
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        while any(process.poll() is None for process in started):
            look()
        for process in started:
            _, err = process.communicate(timeout=patient(30))
            assert process.returncode == 0, err[-2000:]
        found = [json.loads(path.read_text()) for path in paths]
        return Added([one for each in found for one in each["took"]], max(each["longest"] for each in found))

    def kill(self):
        """SIGKILL to those that still run."""
        for process in self._started:
            process.kill()
            process.communicate()
