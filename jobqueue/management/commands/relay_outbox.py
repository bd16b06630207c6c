"""python manage.py relay_outbox: deliver events until told to stop."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError
from threading import Event
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import Error

from jobqueue import registry
from jobqueue.cli import logs, streams
from jobqueue.cli.arguments import count, duration
from jobqueue.cli.database import database_of
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InvalidValue
from jobqueue.names import check_topic
from jobqueue.outbox import Relay, lanes, running
from jobqueue.worker import stacks

logger = logging.getLogger("jobqueue.outbox")

UNREACHABLE, MISCONFIGURED, AWAY = 3, 4, 75
#: how long --drain waits for a database that has gone
DRAIN_RETRY_SECONDS = 30.0


def topics(text: str) -> list[str]:
    """a,b"""
    try:
        return [check_topic(part) for part in text.split(",")]
    except InvalidValue as error:
        raise ArgumentTypeError(str(error)) from None


class Command(BaseCommand):
    """Any number side by side. Exit status: 0 stopped or drained, 2 usage, 3 no database or tables at the start, 4 bad
    settings, 75 the database went away during --drain, 128 + N forced by a second signal N.
    """

    help = "Deliver the events of the outbox. Stops after the delivery under way on SIGTERM and SIGINT."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Options."""
        parser.add_argument("--topics", type=topics, default=None, metavar="a,b", help="only these; default: all")
        parser.add_argument("--batch-size", type=count(10_000), default=None, metavar="N", help="events of one claim")
        parser.add_argument("--interval", type=duration, default=0.5, help="wait when nothing is due (default 500ms)")
        parser.add_argument("--drain", action="store_true", help="exit when nothing is due")
        parser.add_argument("--database", default=None, metavar="ALIAS")
        parser.add_argument("--json", action="store_true", help="one JSON object when a round is over, and at the end")

    def handle(self, *args: Any, **given: Any) -> None:
        """Until a signal, or with --drain until nothing is due."""
        streams.open_missing()
        stop = Event()
        using = database_of(given)
        try:
            relay = Relay(using, topics=given["topics"], batch_size=given["batch_size"], stopping=stop.is_set)
        except ImproperlyConfigured as error:
            self._give_up(str(error), MISCONFIGURED)
        logs.set_up(given["verbosity"], "auto", self.style)
        list(registry.discover())
        try:
            retry_transient(lambda: lanes.heads(lanes.LOWEST, using=using, limit=1), using=using)
        except (Error, DatabaseBusy) as error:
            self._give_up(f"the outbox on {using!r} cannot be read: {error}. Is it migrated?", UNREACHABLE)
        self._catch_signals(stop, relay)
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

    def _catch_signals(self, stop: Event, relay: Relay) -> None:
        def on_signal(number: int, frame: Any) -> None:
            if stop.is_set():
                # At once: leases run out by themselves.
                os._exit(128 + number)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        signal.signal(signal.SIGUSR1, lambda *_: logger.warning("delivered so far: %s", _told(relay)))
        # A closed terminal must not leave events leased to a relay that is gone.
        signal.signal(signal.SIGHUP, lambda *_: logger.warning("SIGHUP: this process has no children to replace"))
        stacks.print_at_sigquit()

    def _give_up(self, text: str, status: int) -> Any:
        self.stderr.write(text)
        sys.exit(status)


def _told(relay: Relay) -> str:
    return ", ".join(f"{what.replace('_', ' ')} {n}" for what, n in relay.counts.items())
