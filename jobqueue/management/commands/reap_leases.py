"""python manage.py reap_leases: end expired leases, delete ended locks and old rows."""

from __future__ import annotations

import json
import signal
import sys
import threading
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand
from django.db import Error, connections

from jobqueue.cli.arguments import count, duration
from jobqueue.cli.database import database_of
from jobqueue.conf import load
from jobqueue.exceptions import DatabaseBusy
from jobqueue.maintenance import lock_sweeper, ordering_sweep, reaper
from jobqueue.maintenance.cleaner import CLEANERS


class Command(BaseCommand):
    """Any number may run at once. Exit status 0, also with nothing to do; 3 no database, 4 bad settings."""

    help = "End leases that ran out: their jobs are READY again, or FAILED when no attempt is left."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Options."""
        parser.add_argument("--interval", type=duration, default=None, help="repeat until SIGTERM; default: one pass")
        parser.add_argument("--limit", type=count(100_000), default=1000, metavar="N", help="leases per transaction")
        parser.add_argument("--dry-run", action="store_true", help="count, change nothing")
        parser.add_argument("--json", action="store_true", help="one JSON object per pass")
        parser.add_argument("--database", default=None, metavar="ALIAS")

    def handle(self, *args: Any, **given: Any) -> None:
        """Run one pass, or one per interval."""
        stop = threading.Event()
        using = database_of(given)
        if given["interval"] is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
        while True:
            try:
                self._pass(using, given)
            except (Error, DatabaseBusy) as error:
                self.stderr.write(f"the database {using!r} cannot be used: {error}. Nothing was reaped in this pass.")
                connections[using].close()
                if given["interval"] is None:
                    sys.exit(3)
            if given["interval"] is None or stop.wait(given["interval"]):
                return

    def _pass(self, using: str, given: dict[str, Any]) -> None:
        if given["dry_run"]:
            expired, ended = reaper.count_expired(using=using), lock_sweeper.count_ended(using=using)
            facts: dict[str, int] = {"expired": expired, "locks": ended}
            text = f"{expired} leases have run out, {ended} locks have ended"
        else:
            found = reaper.run_once(load(), using=using, limit=given["limit"])
            swept = lock_sweeper.run_once(load(), using=using)
            facts = asdict(found) | asdict(swept) | asdict(ordering_sweep.run_once(load(), using=using))
            for cleaner in CLEANERS:
                facts[f"{cleaner.name}_deleted"] = cleaner.run_once(load(), using=using).rows
            text = (
                f"requeued {found.requeued}, dead-lettered {found.dead}, canceled {found.canceled}, "
                f"locks freed {swept.locks_freed}, workers marked dead {found.workers_dead}"
            )
        if given["json"]:
            text = json.dumps({"version": 1, **facts})
        if given["verbosity"] > 0 or given["json"]:
            self.stdout.write(text)
