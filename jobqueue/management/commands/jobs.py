"""python manage.py jobs: inspect and repair the queue."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from jobqueue.cli import bench, completion, dead_letters, enqueue, explain, jobs, locks, prune, queues, schedules, stats
from jobqueue.cli.arguments import NO_DATABASE, USAGE, add_django_options, database_of, unreadable
from jobqueue.cli.output import Result, Subcommand, show
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.time_limit import lock_limit
from jobqueue.exceptions import DatabaseBusy, JobQueueError, OutcomeUnknown, StatementTimeout
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text

SUBCOMMANDS: dict[str, Subcommand] = {
    "list": jobs.LIST,
    "show": jobs.SHOW,
    "explain": explain.EXPLAIN,
    "retry": dead_letters.RETRY,
    "redrives": dead_letters.REDRIVES,
    "note": dead_letters.NOTE,
    "cancel": jobs.CANCEL,
    "discard": jobs.DISCARD,
    "release": jobs.RELEASE,
    "enqueue": enqueue.ENQUEUE,
    "edit": enqueue.EDIT,
    "prune": prune.PRUNE,
    "groups": jobs.GROUPS,
    "keys": queues.KEYS,
    "queues": queues.QUEUES,
    "schedules": schedules.SCHEDULES,
    "workers": stats.WORKERS,
    "locks": locks.LOCKS,
    "stats": stats.STATS,
    "alarms": stats.ALARMS,
    "unrunnable": explain.UNRUNNABLE,
    "doctor": explain.DOCTOR,
    "bench": bench.BENCH,
    "completion": completion.COMPLETION,
}


class Command(BaseCommand):
    """Exit status: 0 done, 2 usage, 3 database not usable, 4 wrong settings; a sub-command may have others."""

    help = "Inspect and repair the queue."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        subparsers = parser.add_subparsers(dest="subcommand", title="sub-commands", metavar="SUB-COMMAND")
        for name, subcommand in SUBCOMMANDS.items():
            own = subparsers.add_parser(name, help=subcommand.meaning, description=subcommand.meaning)
            subcommand.declare(own)
            add_django_options(own, parser)

    def handle(self, *args: Any, **given: Any) -> None:
        using = database_of({"database": None, **given})
        try:
            with explain_missing_table(using), lock_limit(using=using):
                status = self._run(using, given)
        except Error as error:
            self._fail(using, unreadable(using, error), error)
        except (DatabaseBusy, OutcomeUnknown, StatementTimeout) as error:
            self._fail(using, mask_text(one_line(str(error))), error)
        except JobQueueError as error:
            raise CommandError(mask_text(str(error)), returncode=USAGE) from None
        if status:
            sys.exit(status)

    def _run(self, using: str, given: dict[str, Any]) -> int:
        if given["subcommand"] is not None:
            return SUBCOMMANDS[given["subcommand"]].perform(self.stdout, using, given)
        more = ["Sub-commands: manage.py jobs --help"] if given["verbosity"] > 0 else []
        # Without a sub-command the table is all there is, so it is printed at any verbosity.
        return show(Result(lines=[*stats.summary(using), *more]), self.stdout, {"verbosity": 1})

    def _fail(self, using: str, text: str, error: Exception) -> NoReturn:
        self.stderr.write(text)
        explain.tell_waits(using, self.stderr, error)
        sys.exit(NO_DATABASE)
