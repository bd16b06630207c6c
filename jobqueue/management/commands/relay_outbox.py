"""python manage.py relay_outbox: deliver events until a signal, or with --drain until nothing is due."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import Error, connections

from jobqueue.base.validation import check_topic
from jobqueue.cli.arguments import (
    MISCONFIGURED,
    NO_DATABASE,
    add_database,
    add_json,
    add_log_format,
    count,
    database_of,
    duration,
    duration_or_zero,
    unreadable,
)
from jobqueue.cli.output import Result, show
from jobqueue.cli.process import StopFlag, open_missing_streams, set_up_logging
from jobqueue.conf import load
from jobqueue.db.retry import retry_transient
from jobqueue.db.time_limit import Watchdog, watched
from jobqueue.exceptions import DatabaseBusy, InvalidValue
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text
from jobqueue.outbox import Relay, statements
from jobqueue.outbox.relay import DatabaseUnreachable, run
from jobqueue.outbox.routes import Unrouted
from jobqueue.outbox.watch import interrupt
from jobqueue.tasks import registry
from jobqueue.worker.run import call_threads
from jobqueue.worker.shared.processes import print_at_sigquit

logger = logging.getLogger("jobqueue.outbox")

DATABASE_LOST = 75
#: time that --drain waits for a database that became unreachable
DRAIN_RETRY_SECONDS = 30.0
#: time beyond DELIVERY_SECONDS for which code may hold the interpreter's lock
HELD_SECONDS = 10.0


def topics(text: str) -> list[str]:
    """The topics of text such as "a,b"."""
    try:
        return [check_topic(part) for part in text.split(",")]
    except InvalidValue as error:
        raise ArgumentTypeError(str(error)) from None


class Command(BaseCommand):
    """Several may run at once. Exit status: 0 stopped or drained, 1 a subscriber held the interpreter's lock, 2 usage,
    3 no database or tables at the start, 4 wrong settings, 75 the database was lost during --drain, 128 + N ended by a
    second signal N.
    """

    help = "Deliver the events of the outbox. On SIGTERM and SIGINT, finish the current delivery and stop."
    requires_system_checks: list[str] = []
    _is_process = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--topics", type=topics, default=None, metavar="a,b", help="only these topics (default: all)")
        add("--batch-size", type=count(10_000), default=None, metavar="N", help="events of one claim")
        add("--interval", type=duration, default=0.5, help="time between polls when idle (default 500ms)")
        add("--drain", action="store_true", help="exit when nothing is due")
        add("--shutdown-timeout", type=duration_or_zero, default=10.0, help="time to finish after a signal (10s)")
        add_log_format(add, "auto")
        add_database(parser)
        add_json(parser, "print one JSON object after each round, and at the end")

    def run_from_argv(self, argv: list[str]) -> None:
        """Note that this process runs only the command, and so may restart itself."""
        self._is_process = True
        super().run_from_argv(argv)

    def handle(self, *args: Any, **given: Any) -> None:
        open_missing_streams()
        stop = StopFlag()
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
        set_up_logging(given["verbosity"], given["log_format"], self.style)
        list(registry.discover())
        if failed := registry.failed_modules():
            names = one_line(", ".join(failed))
            self._exit(f"the relay does not start: {names} could not be imported. Correct the error", MISCONFIGURED)
        if self._is_process:
            call_threads.serve_other_threads()
            # A process that has no room for a thread does not live long either.
            with suppress(RuntimeError):
                Watchdog("this relay", relay.watch.lease_seconds / 2).start()
        try:
            with watched(connections[using]):
                retry_transient("relay", lambda: statements.heads(statements.LOWEST, using=using, limit=1), using=using)
        except (Error, DatabaseBusy) as error:
            self._exit(unreadable(using, error, "the outbox"), NO_DATABASE)
        self._catch_signals(stop, relay, given["shutdown_timeout"])
        which = f"topics {', '.join(given['topics'])}" if given["topics"] else "all topics"
        until = "until nothing is due" if given["drain"] else "Ctrl-C stops"
        logger.info("relaying the outbox of %r, %s; %s", using, which, until)
        try:
            self._run(relay, stop, given)
        except DatabaseUnreachable as error:
            self._exit(f"the database {using!r} is unreachable: {error}", DATABASE_LOST)
        finally:
            relay.close()

    def _run(self, relay: Relay, stop: StopFlag, given: dict[str, Any]) -> None:
        written: dict[str, int] | None = None
        self._unrouted(relay, log=True)

        def write_counts(unrouted: Collection[Unrouted] = ()) -> None:
            nonlocal written
            found = dict(relay.counts)
            if unrouted:
                found["unrouted"] = sum(len(each.ids) for each in unrouted)
            if found != written:
                show(Result(found), self.stdout, given)
            written = found

        run(
            relay,
            stop,
            interval_seconds=given["interval"],
            drain=given["drain"],
            db_retry_seconds=DRAIN_RETRY_SECONDS if given["drain"] else None,
            on_idle=write_counts,
        )
        left = self._unrouted(relay)
        write_counts(left)
        lines = [_counts(relay), *(f"no route and no subscriber for {each}" for each in left)]
        show(Result(lines=lines), self.stdout, given)

    def _unrouted(self, relay: Relay, *, log: bool = False) -> list[Unrouted]:
        """The events that wait for a route or a subscriber; none if the database does not answer: this is a hint."""
        with suppress(Error, DatabaseBusy):
            return relay.unrouted(log=log)
        return []

    def _catch_signals(self, stop: StopFlag, relay: Relay, shutdown_seconds: float) -> None:
        stop.catch_signals()
        signal.signal(signal.SIGUSR1, lambda *_: logger.warning("delivered so far: %s", _counts(relay)))
        # Closing the terminal must not kill this process while it holds leases on events.
        signal.signal(signal.SIGHUP, lambda *_: logger.warning("SIGHUP: this process has no children to replace"))
        print_at_sigquit(Shutdown(stop, relay, shutdown_seconds).on_signal)

    def _guard(self, watching: bool) -> None:
        """Set or cancel a C timer that ends the process if a delivery holds the interpreter's lock for too long."""
        if not self._is_process or (limit := load().outbox_settings.delivery_seconds) is None:
            return
        # faulthandler needs a file descriptor for its output; without one there is no timer.
        with suppress(Exception):
            if watching:
                faulthandler.dump_traceback_later(limit + HELD_SECONDS, exit=True)
            else:
                faulthandler.cancel_dump_traceback_later()

    def _replace(self, stop: StopFlag, thread: int) -> None:
        """Restart the process under the same id, because the thread of an abandoned delivery may hang for ever."""
        if not self._is_process:
            interrupt(thread)
            return
        _flush()
        if stop.is_set():
            os._exit(0)
        logger.warning("restarting this relay")
        try:
            _close_files_at_exec()
            # A subscriber may have blocked signals, and exec() keeps them blocked.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        except OSError as error:
            logger.critical("this relay cannot be restarted (%s); it exits", error)
            os._exit(1)

    def _exit(self, text: str, status: int) -> NoReturn:
        self.stderr.write(mask_text(text))
        sys.exit(status)


def _counts(relay: Relay) -> str:
    return ", ".join(f"{what.replace('_', ' ')} {n}" for what, n in relay.counts.items())


class Shutdown:
    """Handles signals, also while the main thread hangs in a delivery."""

    def __init__(self, stop: StopFlag, relay: Relay, shutdown_seconds: float) -> None:
        self._stop, self._relay, self._shutdown_seconds = stop, relay, shutdown_seconds
        self._signaled = False

    def on_signal(self, number: int) -> None:
        """Begin the shutdown; exit at once at the second signal. Called in a thread of its own."""
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        if self._signaled:
            # Nothing to release: leases expire by themselves.
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


def _close_files_at_exec() -> None:
    """Let exec() close all files: a database session that stays open keeps its locks."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):
                os.set_inheritable(int(name), False)
