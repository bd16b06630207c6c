"""python manage.py jobs: inspect and repair the queue."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import Error

from jobqueue.cli import keys, locks, unrunnable
from jobqueue.cli.arguments import NO_DATABASE, USAGE, database_of
from jobqueue.exceptions import JobQueueError


class Subcommand(Protocol):
    """The module of a sub-command."""

    def declare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""

    def run(self, out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
        """Run with the parsed arguments. Returns the exit status."""


SUBCOMMANDS: dict[str, Subcommand] = {"keys": keys, "locks": locks, "unrunnable": unrunnable}


class Command(BaseCommand):
    """Exit status: 0 done, 2 usage, 3 no usable database, 4 wrong settings; a sub-command may have others."""

    help = "Inspect and repair the queue."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        subparsers = parser.add_subparsers(dest="subcommand", required=True)
        for name, module in SUBCOMMANDS.items():
            module.declare(subparsers.add_parser(name, help=module.__doc__))

    def handle(self, *args: Any, **given: Any) -> None:
        using = database_of(given)
        try:
            status = SUBCOMMANDS[given["subcommand"]].run(self.stdout, using, given)
        except JobQueueError as error:
            raise CommandError(str(error), returncode=USAGE) from None
        except Error as error:
            self.stderr.write(f"the queue on {using!r} cannot be read: {error}. Is it migrated?")
            sys.exit(NO_DATABASE)
        if status:
            sys.exit(status)
