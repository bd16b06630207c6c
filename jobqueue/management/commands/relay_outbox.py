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
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import Error, connections

from jobqueue import registry
from jobqueue.cli import logs, streams
from jobqueue.cli.arguments import count, duration, duration_or_zero
from jobqueue.cli.database import database_of
from jobqueue.conf import load
from jobqueue.db.cutting import watched
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InvalidValue
from jobqueue.names import check_topic
from jobqueue.outbox import Relay, lanes, running
from jobqueue.outbox.watch import interrupt
from jobqueue.worker import stacks
from jobqueue.worker.lookout import Lookout

logger = logging.getLogger("jobqueue.outbox")

UNREACHABLE, MISCONFIGURED, AWAY = 3, 4, 75
#: how long --drain waits for a database that has gone
DRAIN_RETRY_SECONDS = 30.0
#: how long code that holds the interpreter's lock may outlast DELIVERY_SECONDS
HELD_SECONDS = 10.0


def topics(text: str) -> list[str]:
    """a,b"""
    try:
        return [check_topic(part) for part in text.split(",")]
    except InvalidValue as error:
        raise ArgumentTypeError(str(error)) from None


class Command(BaseCommand):
    """Any number side by side. Exit status: 0 stopped or drained, 1 a subscriber held the interpreter, 2 usage, 3 no
    database or tables at the start, 4 bad settings, 75 the database went away during --drain, 128 + N forced by a
    second signal N.
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
        """As a process of its own, which may be replaced."""
        self._is_process = True
        super().run_from_argv(argv)

    def handle(self, *args: Any, **given: Any) -> None:
        """Until a signal, or with --drain until nothing is due."""
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
            self._give_up(str(error), MISCONFIGURED)
        logs.set_up(given["verbosity"], "auto", self.style)
        list(registry.discover())
        if self._is_process:
            # A process that has no room for a thread does not live long either.
            with suppress(RuntimeError):
                Lookout("this relay", relay.lease_seconds / 2).start()
        try:
            with watched(connections[using]):
                retry_transient(lambda: lanes.heads(lanes.LOWEST, using=using, limit=1), using=using)
        except (Error, DatabaseBusy) as error:
            self._give_up(f"the outbox on {using!r} cannot be read: {error}. Is it migrated?", UNREACHABLE)
        self._catch_signals(stop, relay, given["shutdown_timeout"])
        logger.info("relaying the outbox of %r, topics %s", using, ", ".join(given["topics"] or ["*"]))
        try:
            self._run(relay, stop, given)
        except running.DatabaseAway as error:
            self._give_up(f"the database {using!r} went away: {error}", AWAY)
        finally:
            relay.close()

    def _run(self, relay: Relay, stop: Event, given: dict[str, Any]) -> None:
        told: dict[str, int] | None = None

        def tell() -> None:
            nonlocal told
            found = dict(relay.counts)
            if given["json"] and found != told:
                self.stdout.write(json.dumps({"version": 1, **found}))
            told = found

        patience = DRAIN_RETRY_SECONDS if given["drain"] else None
        seconds = given["interval"]
        running.run(
            relay, stop, interval_seconds=seconds, drain=given["drain"], db_retry_seconds=patience, on_idle=tell
        )
        tell()
        if not given["json"] and given["verbosity"] > 0:
            self.stdout.write(_told(relay))

    def _catch_signals(self, stop: Event, relay: Relay, shutdown_seconds: float) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: logger.warning("delivered so far: %s", _told(relay)))
        # A closed terminal must not leave events leased to a relay that is gone.
        signal.signal(signal.SIGHUP, lambda *_: logger.warning("SIGHUP: this process has no children to replace"))
        stacks.print_at_sigquit(Ending(stop, relay, shutdown_seconds).on_signal)

    def _guard(self, watching: bool) -> None:
        """End this process without the interpreter's help, should nobody look at its deliveries for so long."""
        if not self._is_process or (limit := load().outbox_settings.delivery_seconds) is None:
            return
        # Without a file descriptor there is nothing to print to.
        with suppress(Exception):
            if watching:
                faulthandler.dump_traceback_later(limit + HELD_SECONDS, exit=True)
            else:
                faulthandler.cancel_dump_traceback_later()

    def _replace(self, stop: Event, thread: int) -> None:
        """A delivery was given up, and its thread may hang for ever: the process begins anew, under the same id."""
        if not self._is_process:
            interrupt(thread)
            return
        _flush()
        if stop.is_set():
            os._exit(0)
        logger.warning("starting this relay anew")
        try:
            _keep_no_file_open()
            # A subscriber may have blocked some in the thread that started this one, and exec would keep that.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        except OSError as error:
            logger.critical("this relay cannot be started anew (%s); it ends", error)
            os._exit(1)

    def _give_up(self, text: str, status: int) -> Any:
        self.stderr.write(text)
        sys.exit(status)


def _told(relay: Relay) -> str:
    return ", ".join(f"{what.replace('_', ' ')} {n}" for what, n in relay.counts.items())


class Ending:
    """What signals do while the main thread may hang in a delivery."""

    def __init__(self, stop: Event, relay: Relay, shutdown_seconds: float) -> None:
        self._stop, self._relay, self._shutdown_seconds = stop, relay, shutdown_seconds
        self._signaled = False

    def on_signal(self, number: int) -> None:
        """Called by a thread of its own."""
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        if self._signaled:
            # At once: leases run out by themselves.
            os._exit(128 + number)
        self._signaled = True
        self._stop.set()
        threading.Thread(target=self._end, name="jobqueue-relay-end", daemon=True).start()

    def _end(self) -> None:
        time.sleep(self._shutdown_seconds)
        self._relay.watch.let_go()
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _keep_no_file_open() -> None:
    """What this process has open ends with it: a session of a database that lived on would keep its locks."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):
                os.set_inheritable(int(name), False)
