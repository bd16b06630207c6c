"""python manage.py relay_outbox: deliver events until told to stop."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import Error

from jobqueue.cli import logs, streams
from jobqueue.cli.arguments import count, duration, duration_or_zero
from jobqueue.cli.database import database_of
from jobqueue.conf import load
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InvalidValue
from jobqueue.outbox import Relay, lanes, relay_loop
from jobqueue.outbox.watch import interrupt
from jobqueue.tasks import registry
from jobqueue.validation import check_topic
from jobqueue.worker.shared import stack_dump

logger = logging.getLogger("jobqueue.outbox")

NO_DATABASE, MISCONFIGURED, DATABASE_LOST = 3, 4, 75
#: how long --drain waits for a database that became unreachable
DRAIN_RETRY_SECONDS = 30.0
#: how much longer than DELIVERY_SECONDS code may hold the interpreter's lock
HELD_SECONDS = 10.0


def topics(text: str) -> list[str]:
    """a,b"""
    try:
        return [check_topic(part) for part in text.split(",")]
    except InvalidValue as error:
        raise ArgumentTypeError(str(error)) from None


class Command(BaseCommand):
    """Any number may run at once. Exit status: 0 stopped or drained, 1 a subscriber held the interpreter's lock, 2
    usage, 3 no database or tables at the start, 4 bad settings, 75 the database was lost during --drain, 128 + N forced
    by a second signal N.
    """

    help = "Deliver the events of the outbox. Stops after the delivery under way on SIGTERM and SIGINT."
    requires_system_checks: list[str] = []
    _is_process = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Options."""
        parser.add_argument("--topics", type=topics, default=None, metavar="a,b", help="only these; default: all")
        parser.add_argument("--batch-size", type=count(10_000), default=None, metavar="N", help="events of one claim")
        parser.add_argument("--interval", type=duration, default=0.5, help="wait when nothing is due (default 500ms)")
        parser.add_argument("--drain", action="store_true", help="exit when nothing is due")
        parser.add_argument(
            "--shutdown-timeout", type=duration_or_zero, default=10.0, metavar="D",
            help="time for the delivery under way after a signal (default 10s)",
        )  # fmt: skip
        parser.add_argument("--database", default=None, metavar="ALIAS")
        parser.add_argument("--json", action="store_true", help="one JSON object when a round is over, and at the end")

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a process of its own, which may replace itself."""
        self._is_process = True
        super().run_from_argv(argv)

    def handle(self, *args: Any, **given: Any) -> None:
        """Relay until a signal, or with --drain until nothing is due."""
        streams.open_missing()
        stop = Event()
        using = database_of(given)
        try:
            relay = Relay(
                using,
                topics=given["topics"],
                batch_size=given["batch_size"],
                stopping=stop.is_set,
                on_overdue=partial(self._replace, stop),
                on_look=self._guard,
            )
        except ImproperlyConfigured as error:
            self._exit(str(error), MISCONFIGURED)
        logs.set_up(given["verbosity"], "auto", self.style)
        list(registry.discover())
        try:
            retry_transient(lambda: lanes.heads(lanes.LOWEST, using=using, limit=1), using=using)
        except (Error, DatabaseBusy) as error:
            self._exit(f"the outbox on {using!r} cannot be read: {error}. Is it migrated?", NO_DATABASE)
        self._catch_signals(stop, relay, given["shutdown_timeout"])
        logger.info("relaying the outbox of %r, topics %s", using, ", ".join(given["topics"] or ["*"]))
        try:
            self._run(relay, stop, given)
        except relay_loop.DatabaseUnreachable as error:
            self._exit(f"the database {using!r} is unreachable: {error}", DATABASE_LOST)
        finally:
            relay.close()

    def _run(self, relay: Relay, stop: Event, given: dict[str, Any]) -> None:
        written: dict[str, int] | None = None

        def write_counts() -> None:
            nonlocal written
            found = dict(relay.counts)
            if given["json"] and found != written:
                self.stdout.write(json.dumps({"version": 1, **found}))
            written = found

        db_retry_seconds = DRAIN_RETRY_SECONDS if given["drain"] else None
        seconds = given["interval"]
        relay_loop.run(
            relay,
            stop,
            interval_seconds=seconds,
            drain=given["drain"],
            db_retry_seconds=db_retry_seconds,
            on_idle=write_counts,
        )
        write_counts()
        if not given["json"] and given["verbosity"] > 0:
            self.stdout.write(_counts(relay))

    def _catch_signals(self, stop: Event, relay: Relay, shutdown_seconds: float) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: logger.warning("delivered so far: %s", _counts(relay)))
        # A closed terminal must not leave events leased to a relay that is gone.
        signal.signal(signal.SIGHUP, lambda *_: logger.warning("SIGHUP: this process has no children to replace"))
        stack_dump.print_at_sigquit(Shutdown(stop, relay, shutdown_seconds).on_signal)

    def _guard(self, watching: bool) -> None:
        """Set a C timer that ends this process if the watch of its deliveries cannot run for so long."""
        limit = load().outbox_settings.delivery_seconds
        if not self._is_process or limit is None:
            return
        # faulthandler needs a file descriptor to print to; without one there is no timer.
        with suppress(Exception):
            if watching:
                faulthandler.dump_traceback_later(limit + HELD_SECONDS, exit=True)
            else:
                faulthandler.cancel_dump_traceback_later()

    def _replace(self, stop: Event, thread: int) -> None:
        """Restart the process under the same id: the thread of a delivery that was given up may hang for ever."""
        if not self._is_process:
            interrupt(thread)
            return
        _flush()
        if stop.is_set():
            os._exit(0)
        logger.warning("restarting this relay")
        try:
            _keep_no_file_open()
            # A subscriber may have blocked signals in this thread's parent, and exec would keep them blocked.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        except OSError as error:
            logger.critical("this relay cannot be restarted (%s); it ends", error)
            os._exit(1)

    def _exit(self, text: str, status: int) -> NoReturn:
        self.stderr.write(text)
        sys.exit(status)


def _counts(relay: Relay) -> str:
    return ", ".join(f"{what.replace('_', ' ')} {n}" for what, n in relay.counts.items())


class Shutdown:
    """Handles signals while the main thread may hang in a delivery."""

    def __init__(self, stop: Event, relay: Relay, shutdown_seconds: float) -> None:
        self._stop, self._relay, self._shutdown_seconds = stop, relay, shutdown_seconds
        self._signaled = False

    def on_signal(self, number: int) -> None:
        """Begin the shutdown; a second signal exits at once. Called by a thread of its own."""
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        if self._signaled:
            # At once: leases expire by themselves.
            os._exit(128 + number)
        self._signaled = True
        self._stop.set()
        threading.Thread(target=self._end, name="jobqueue-relay-end", daemon=True).start()

    def _end(self) -> None:
        time.sleep(self._shutdown_seconds)
        self._relay.watch.release()
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _keep_no_file_open() -> None:
    """Close all files at exec: a database session that stayed open would keep its locks."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):
                os.set_inheritable(int(name), False)
