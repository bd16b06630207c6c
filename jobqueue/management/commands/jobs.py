"""python manage.py jobs: inspect and repair the queue."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import Error

from jobqueue.cli import (
    alarms,
    bench,
    completion,
    doctor,
    enqueue,
    explain,
    groups,
    keys,
    listing,
    locks,
    notes,
    operations,
    prune,
    queues,
    redrives,
    retry,
    schedules,
    show,
    stats,
    unrunnable,
    workers,
)
from jobqueue.cli.arguments import NO_DATABASE, USAGE, add_django_options, database_of, unreadable
from jobqueue.cli.masked_output import MaskedOutput
from jobqueue.cli.waits import tell_waits
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.time_limit import lock_limit
from jobqueue.exceptions import DatabaseBusy, JobQueueError, OutcomeUnknown, StatementTimeout
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text


class Subcommand(Protocol):
    """The module of a sub-command, or an object like it."""

    def declare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""

    def run(self, out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
        """Run with the parsed arguments. Returns the exit status."""


SUBCOMMANDS: dict[str, Subcommand] = {
    "list": listing,
    "show": show,
    "explain": explain,
    "retry": retry,
    "redrives": redrives,
    "note": notes,
    "cancel": operations.CANCEL,
    "discard": operations.DISCARD,
    "release": operations.RELEASE,
    "enqueue": enqueue,
    "prune": prune,
    "groups": groups,
    "keys": keys,
    "queues": queues,
    "schedules": schedules,
    "workers": workers,
    "locks": locks,
    "stats": stats,
    "alarms": alarms,
    "unrunnable": unrunnable,
    "doctor": doctor,
    "bench": bench,
    "completion": completion,
}


class Command(BaseCommand):
    """Exit status: 0 done, 2 usage, 3 database not usable, 4 wrong settings; a sub-command may have others."""

    help = "Inspect and repair the queue."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        subparsers = parser.add_subparsers(dest="subcommand", title="sub-commands", metavar="SUB-COMMAND")
        for name, module in SUBCOMMANDS.items():
            # Their docstrings begin with "jobs NAME:", which the list does not need.
            meaning = (module.__doc__ or "").partition(": ")[2].capitalize()
            own = subparsers.add_parser(name, help=meaning, description=meaning)
            module.declare(own)
            add_django_options(own, parser)

    def handle(self, *args: Any, **given: Any) -> None:
        using = database_of({"database": None, **given})
        try:
            with explain_missing_table(using), lock_limit(using=using):
                status = self._run(using, given)
        except Error as error:
            self.stderr.write(mask_text(unreadable(using, error)))
            tell_waits(using, self.stderr, error)
            sys.exit(NO_DATABASE)
        except (DatabaseBusy, OutcomeUnknown, StatementTimeout) as error:
            self.stderr.write(mask_text(one_line(str(error))))
            tell_waits(using, self.stderr, error)
            sys.exit(NO_DATABASE)
        except JobQueueError as error:
            raise CommandError(mask_text(str(error)), returncode=USAGE) from None
        if status:
            sys.exit(status)

    def _run(self, using: str, given: dict[str, Any]) -> int:
        name = given["subcommand"]
        # A script of a shell is of no row.
        out = self.stdout if name == "completion" else MaskedOutput(self.stdout, as_json=given.get("json", False))
        if name is not None:
            return SUBCOMMANDS[name].run(out, using, given)
        stats.summarize(out, using)
        if given["verbosity"] > 0:
            out.write("Sub-commands: manage.py jobs --help")
        return 0
