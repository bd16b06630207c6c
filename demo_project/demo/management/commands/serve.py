"""python manage.py serve: a worker and the admin site together, until Ctrl-C."""

import secrets
import signal
import subprocess
import sys
import threading
import uuid
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.utils import timezone

from demo_project.demo import tasks
from demo_project.orders.shop import place

USER = "admin"
STOP_SECONDS = 35


class Command(BaseCommand):
    """Exit status 0 after Ctrl-C or SIGTERM, 1 if the worker or the site ended by itself."""

    help = "Run a worker and the admin site, with a superuser whose password is new at each start."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--address", default="127.0.0.1:8000")

    def handle(self, *args: Any, **given: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
        password = _superuser()
        _enqueue_samples()
        address = given["address"]
        running = [_start("runworker", "--no-reload"), _start("runserver", address, "--noreload")]
        self.stdout.write(f"http://{address}/admin/  user {USER}  password {password}  (Ctrl-C stops both)")
        self.stdout.flush()
        try:
            while not stop.wait(0.3) and all(process.poll() is None for process in running):
                pass
        finally:
            _stop(running)
        if not stop.is_set():
            self.stderr.write("the worker or the site ended by itself; see above")
            sys.exit(1)


def _superuser() -> str:
    """Create or reuse the superuser. Returns its new password, which is stored nowhere else."""
    password = secrets.token_urlsafe(12)
    user, _ = get_user_model().objects.get_or_create(username=USER)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    return password


def _enqueue_samples() -> None:
    tasks.add.enqueue(2, 3)
    tasks.fail.enqueue("a sample failure")
    tasks.slow.enqueue(30)
    number = uuid.uuid4().hex[:8]
    place(f"sample-{number}", "customer-1", "lamp", 1, run="serve")
    tasks.add.using(run_after=timezone.now() + timedelta(minutes=2)).enqueue(20, 22)


def _start(*arguments: str) -> "subprocess.Popen[bytes]":
    manage = str(Path(settings.BASE_DIR, "manage.py"))
    # In a process group of its own, so that Ctrl-C reaches only this command, which then stops both.
    return subprocess.Popen([sys.executable, manage, *arguments], process_group=0)


def _stop(running: "list[subprocess.Popen[bytes]]") -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
