"""python manage.py jobs: look at the queue, and put it right."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from jobqueue.cli import keys, locks, unrunnable
from jobqueue.cli.database import database_of
from jobqueue.exceptions import JobQueueError

#: sub-command -> its module, with declare(parser) and run(out, using, given) -> exit status
SUBCOMMANDS: dict[str, Any] = {"keys": keys, "locks": locks, "unrunnable": unrunnable}


class Command(BaseCommand):
    """Exit status: 0 done, 2 usage, 3 the database cannot be used, 4 bad settings; others: the sub-command's."""

    help = "Look at the queue, and put it right."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One parser per sub-command."""
        subparsers = parser.add_subparsers(dest="subcommand", required=True)
        for name, module in SUBCOMMANDS.items():
            module.declare(subparsers.add_parser(name, help=module.__doc__))

    def handle(self, *args: Any, **given: Any) -> None:
        """Run it."""
        using = database_of(given)
        try:
            status = SUBCOMMANDS[given["subcommand"]].run(self.stdout, using, given)
        except JobQueueError as error:
            raise CommandError(str(error), returncode=2) from None
        except Error as error:
            self.stderr.write(f"the queue on {using!r} cannot be read: {error}. Is it migrated?")
            sys.exit(3)
        if status:
            sys.exit(status)
