"""python manage.py reap_leases: end expired leases, carry redrives out, delete expired locks and old rows."""

from __future__ import annotations

import signal
import sys
import threading
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand
from django.db import Error, connections

from jobqueue.alarms.watch import AlarmWatch
from jobqueue.cli.arguments import NO_DATABASE, add_database, add_json, count, database_of, duration, unreadable
from jobqueue.cli.explain import tell_waits
from jobqueue.cli.output import Result, show
from jobqueue.conf import load
from jobqueue.db.time_limit import lock_limit
from jobqueue.exceptions import DatabaseBusy
from jobqueue.flow.unaware import running_workers
from jobqueue.maintenance import (
    bulk_runner,
    gate_sweep,
    group_cleaner,
    group_sweep,
    lock_sweeper,
    ordering_sweep,
    pruner,
    reaper,
    redriver,
    stat_rollup,
)
from jobqueue.maintenance.cleaner import CLEANERS
from jobqueue.stats import recorder

#: how long a single pass waits for those who are told of alarms
ALARM_SECONDS = 30.0
#: how long a command that was stopped waits for the one who is being told
END_SECONDS = 3.0


class Command(BaseCommand):
    """Several may run at once. Exit status: 0 done, also with nothing to do; 3 no usable database, 4 wrong settings."""

    help = (
        "End expired leases: their jobs are READY again, or FAILED if no attempt is left. Carry redrives out. "
        "Delete old rows."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--interval", type=duration, default=None, help="repeat after this time until SIGTERM (default: one pass)")
        add("--limit", type=count(100_000), default=1000, metavar="N", help="leases per transaction (default 1000)")
        add("--dry-run", action="store_true", help="count, but change nothing")
        add_json(parser, "print one JSON object per pass")
        add_database(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        stop = threading.Event()
        using = database_of(given)
        if given["interval"] is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
        self._alarms = AlarmWatch()
        # One that others keep locked must not stop what is reaped in the next pass.
        with lock_limit(using=using), recorder.recording(using) as stats:
            self._repeat(using, given, stop, stats)
        if given["interval"] is None:
            self._alarms.wait(ALARM_SECONDS)
        self._alarms.end(END_SECONDS)

    def _repeat(self, using: str, given: dict[str, Any], stop: threading.Event, stats: recorder.Recorder) -> None:
        while True:
            try:
                self._pass(using, given)
                stats.try_flush()
                self._look(using, given)
            except (Error, DatabaseBusy) as error:
                self.stderr.write(f"{unreadable(using, error)} This pass has ended early.")
                tell_waits(using, self.stderr, error)
                connections[using].close()
                if given["interval"] is None:
                    sys.exit(NO_DATABASE)
            if given["interval"] is None or stop.wait(given["interval"]):
                return

    def _pass(self, using: str, given: dict[str, Any]) -> None:
        if given["dry_run"]:
            expired, ended = reaper.count_expired(using=using), lock_sweeper.count_ended(using=using)
            facts: dict[str, int] = {"expired": expired, "locks": ended}
            leases, locks = ("lease" if expired == 1 else "leases"), ("lock" if ended == 1 else "locks")
            text = f"expired: {expired} {leases} and {ended} {locks}"
        else:
            found = reaper.run_once(load(), using=using, limit=given["limit"])
            swept = lock_sweeper.run_once(load(), using=using)
            facts = asdict(found) | asdict(swept) | asdict(ordering_sweep.run_once(load(), using=using))
            gates = gate_sweep.run_once(load(), using=using, workers=running_workers)
            facts |= {"gates_jobs_opened": gates.jobs_opened, "gates_rows_deleted": gates.rows_deleted}
            groups = group_sweep.run_once(load(), using=using)
            facts |= {"groups_members_ended": groups.members_ended, "groups_ended": groups.groups_ended}
            redriven = redriver.run_once(load(), using=using)
            facts |= asdict(redriven) | asdict(bulk_runner.run_once(load(), using=using))
            for cleaner in CLEANERS:
                facts[f"{cleaner.name}_deleted"] = cleaner.run_once(load(), using=using).rows
            facts["groups_deleted"] = group_cleaner.run_once(load(), using=using).rows
            facts["statistics_added_up"] = stat_rollup.roll_up(using=using).rows_read
            pruned = self._prune(using, given)
            facts |= {"jobs_deleted": pruned.jobs_deleted, "attempts_deleted": pruned.attempts_deleted}
            text = (
                f"requeued {found.requeued}, dead-lettered {found.dead}, canceled {found.canceled}, "
                f"locks freed {swept.locks_freed}, workers marked dead {found.workers_dead}, "
                f"dead letters redriven {redriven.jobs_redriven}, ended jobs deleted {pruned.jobs_deleted}"
            )
        show(Result(facts, [text]), self.stdout, given)

    def _look(self, using: str, given: dict[str, Any]) -> None:
        """Look for alarms in a thread of its own: at the end of the command it has some time left."""
        if given["dry_run"]:
            return
        try:
            self._alarms.run_once(load(), using=using)
        except (Error, DatabaseBusy) as error:
            self.stderr.write(f"{unreadable(using, error)} Nobody has looked for alarms in this pass.")
            connections[using].close()

    def _prune(self, using: str, given: dict[str, Any]) -> pruner.Pruned:
        """Last: the leases are reaped by now, whatever becomes of this. Not for long where others are to be reaped."""
        seconds = pruner.PASS_SECONDS if given["interval"] is None else min(pruner.PASS_SECONDS, given["interval"])
        try:
            return pruner.run_once(load(), using=using, seconds=seconds)
        except (Error, DatabaseBusy) as error:
            self.stderr.write(f"{unreadable(using, error)} No ended jobs were deleted in this pass.")
            connections[using].close()
            return pruner.Pruned()
