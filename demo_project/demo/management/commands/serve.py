"""python manage.py serve: a worker and the admin site together, until Ctrl-C."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.urls import reverse

from demo_project.demo import port
from demo_project.demo.people import USER, make_superuser
from demo_project.demo.samples import replace_samples
from demo_project.orders.shop import place

LOOK_SECONDS = 0.2
START_SECONDS = 60
STOP_SECONDS = 35
Processes = list["subprocess.Popen[bytes]"]


class Command(BaseCommand):
    """Exit status 0 after Ctrl-C or SIGTERM, 1 if the port is in use, or the worker or the site ended by itself."""

    help = "Run a worker and the admin site, with sample jobs and a superuser whose password is new at each start."

    def add_arguments(self, parser: ArgumentParser) -> None:
        default = os.environ.get("PORT") or str(port.DEFAULT)
        parser.add_argument("--port", default=default, help=f"default: $PORT, or {port.DEFAULT}")

    def handle(self, *args: Any, **given: Any) -> None:
        if problem := port.problem(given["port"]):
            raise CommandError(problem)
        # No threading.Event: its set() takes a lock. A signal that interrupts wait() may find this lock taken for ever.
        stopped: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: stopped.append(number))
        call_command("migrate", verbosity=0)
        password = make_superuser()
        jobs = replace_samples()
        place(f"sample-{uuid.uuid4().hex[:8]}", "customer-1", "lamp", 1, run="serve")
        address = f"{port.HOST}:{given['port']}"
        running = [_start("runworker", "--no-reload"), _start("runserver", address, "--noreload", quiet=True)]
        try:
            if _answers(int(given["port"]), running, stopped):
                self._say(address, password, jobs)
            while not stopped and _all_run(running):
                time.sleep(LOOK_SECONDS)
        finally:
            _stop(running)
        if not stopped:
            raise CommandError("The worker or the site ended by itself, so both were stopped; the reason stands above.")

    def _say(self, address: str, password: str, jobs: int) -> None:
        lines = (
            "",
            f"  {jobs} sample jobs of the last hour, and a worker that goes on with them:",
            f"  jobs      http://{address}{reverse('admin:jobqueue_job_changelist')}",
            f"  redrives  http://{address}{reverse('admin:jobqueue_redrive_changelist')} (dead letters by failure)",
            f"  queues    http://{address}{reverse('admin:jobqueue_flowrule_changelist')} (one paused, one limited)",
            f"  races     http://{address}{reverse('races')} (recorded by make prove)",
            f"  log in    user {USER}, password {password}",
            "  Ctrl-C stops the worker and the site.",
            "",
        )
        self.stdout.write("\n".join(lines))
        self.stdout.flush()


def _start(*arguments: str, quiet: bool = False) -> "subprocess.Popen[bytes]":
    manage = str(Path(settings.BASE_DIR, "manage.py"))
    # In a process group of its own, so that Ctrl-C reaches only this command, which then stops both.
    return subprocess.Popen(
        [sys.executable, manage, *arguments],
        process_group=0,
        stdout=subprocess.DEVNULL if quiet else None,
        # Not the folder of `make demo`, which may run at the same time and deletes the e-mails.
        env={**os.environ, "DEMO_DIR": str(Path(settings.DEMO_DIR, "serve"))},
    )


def _all_run(running: Processes) -> bool:
    return all(process.poll() is None for process in running)


def _answers(number: int, running: Processes, stopped: list[int]) -> bool:
    """Whether the site answers; False if it ended, was stopped, or takes too long."""
    until = time.monotonic() + START_SECONDS
    while _all_run(running) and time.monotonic() < until and not stopped:
        time.sleep(LOOK_SECONDS)
        with socket.socket() as probe:
            if probe.connect_ex((port.HOST, number)) == 0:
                return True
    return False


def _stop(running: Processes) -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
