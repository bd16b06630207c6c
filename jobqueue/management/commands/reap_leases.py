"""python manage.py reap_leases: end expired leases, and do all chores of workers that are due."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand
from django.db import Error, connections

from jobqueue.cli.arguments import NO_DATABASE, add_database, add_json, count, database_of, duration, unreadable
from jobqueue.cli.explain import tell_waits
from jobqueue.cli.output import Result, show
from jobqueue.cli.process import StopFlag
from jobqueue.conf import load
from jobqueue.db.time_limit import lock_limit
from jobqueue.exceptions import DatabaseBusy
from jobqueue.maintenance import cleaner, reaper
from jobqueue.stats import recorder
from jobqueue.worker.monitor.chores import PASS_SECONDS, Chore, Chores

#: how long a single pass waits for those who are told of alarms
ALARM_SECONDS = 30.0
#: how long a command that was stopped waits for the one who is being told
END_SECONDS = 3.0
#: the counts of reaping
REAPED = ("requeued", "dead", "canceled", "workers_dead")
#: the counts that are printed without --json, and their words
WORDS = {
    "requeued": "requeued",
    "dead": "dead-lettered",
    "canceled": "canceled",
    "locks_freed": "locks freed",
    "workers_dead": "workers marked dead",
    "jobs_redriven": "dead letters redriven",
    "jobs_deleted": "ended jobs deleted",
}


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
        stop = StopFlag()
        using = database_of(given)
        if given["interval"] is not None:
            stop.catch_signals()
        self._chores = Chores(using)
        # One that others keep locked must not stop what is reaped in the next pass.
        with lock_limit(using=using), recorder.recording(using) as stats:
            self._repeat(using, given, stop, stats)
        if given["interval"] is None:
            self._chores.alarm_watch.wait(ALARM_SECONDS)
        self._chores.alarm_watch.end(END_SECONDS)

    def _repeat(self, using: str, given: dict[str, Any], stop: StopFlag, stats: recorder.Recorder) -> None:
        while True:
            try:
                self._count(using, given) if given["dry_run"] else self._pass(using, given, stats)
            except (Error, DatabaseBusy) as error:
                self.stderr.write(f"{unreadable(using, error)} This pass has ended early.")
                tell_waits(using, self.stderr, error)
                connections[using].close()
                if given["interval"] is None:
                    sys.exit(NO_DATABASE)
            if given["interval"] is None or stop.wait(given["interval"]):
                return

    def _count(self, using: str, given: dict[str, Any]) -> None:
        lapsed, ended = reaper.count_lapsed(using=using), cleaner.count_ended_locks(using=using)
        leases, locks = ("lease" if lapsed == 1 else "leases"), ("lock" if ended == 1 else "locks")
        text = f"expired: {lapsed} {leases} and {ended} {locks}"
        show(Result({"expired": lapsed, "locks": ended}, [text]), self.stdout, given)

    def _pass(self, using: str, given: dict[str, Any], stats: recorder.Recorder) -> None:
        done = reaper.run_once(load(), using=using, limit=given["limit"])
        for chore in self._chores.table:
            # Alarms come last, and read what the others have counted.
            stats.try_flush()
            done.update(self._do(chore, using, given["interval"]))
        shown = [*REAPED, *(name for chore in self._chores.table for name in chore.counts)]
        text = ", ".join(f"{words} {done[name]}" for name, words in WORDS.items())
        show(Result({name: done[name] for name in shown}, [text]), self.stdout, given)

    def _do(self, chore: Chore, using: str, interval_seconds: float | None) -> Counter[str]:
        """Do a chore as a whole, but not for long where others are to be reaped."""
        if chore.whole is None:
            return Counter()
        seconds = PASS_SECONDS if interval_seconds is None else min(PASS_SECONDS, interval_seconds)
        try:
            return chore.whole(load(), using=using, seconds=seconds)
        except (Error, DatabaseBusy) as error:
            if not chore.missed:
                raise
            self.stderr.write(f"{unreadable(using, error)} {chore.missed}")
            connections[using].close()
            return Counter()
