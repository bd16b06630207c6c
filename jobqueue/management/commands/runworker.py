"""python manage.py runworker: run jobs until a signal or an option ends the worker."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error

from jobqueue.cli import worker_options
from jobqueue.cli.arguments import MISCONFIGURED, NO_DATABASE, unreadable
from jobqueue.cli.output import Result, show
from jobqueue.cli.process import open_missing_streams, pid_file, set_up_logging
from jobqueue.db.alias import explain_missing_table
from jobqueue.transitions.claiming import candidates
from jobqueue.worker.shared.worker_options import Options
from jobqueue.worker.supervisor import Supervisor

DRY_RUN_JOBS = 20


class Command(BaseCommand):
    """Exit status: 0 done, 1 unexpected error, 2 usage, 3 no database or tables, 4 wrong settings, 5 a job failed and
    --fail-on-error, 75 the database was unreachable for longer than --db-retry, 128 + N ended by a second signal N.
    """

    help = "Run jobs: a supervisor with child processes and threads. Stops gracefully on SIGTERM and SIGINT."
    # The monitor process checks the database, so that this process never opens a connection.
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Show the options in groups, and examples below them."""
        usage = f"{os.path.basename(prog_name)} {subcommand} [QUEUE ...] [options]"
        own = {"usage": usage, "epilog": worker_options.EXAMPLES, "formatter_class": worker_options.HelpFormatter}
        return super().create_parser(prog_name, subcommand, **(own | kwargs))

    def add_arguments(self, parser: ArgumentParser) -> None:
        worker_options.declare(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        open_missing_streams()
        try:
            options = worker_options.build(given)
        except ImproperlyConfigured as error:
            self.stderr.write(str(error))
            sys.exit(MISCONFIGURED)
        if given["dry_run"]:
            try:
                with explain_missing_table(options.database):
                    show(Result(lines=due_lines(options)), self.stdout, {"verbosity": 1})
            except Error as error:
                self.stderr.write(unreadable(options.database, error))
                sys.exit(NO_DATABASE)
            return
        set_up_logging(given["verbosity"], given["log_format"], self.style)
        with pid_file(given["pidfile"]):
            status = Supervisor(options).run()
        if status:
            sys.exit(status)


def due_lines(options: Options) -> Iterator[str]:
    """The jobs that the worker would claim first, in order; reading them locks and changes nothing."""
    using, left = options.database, DRY_RUN_JOBS
    for queue in options.selection.names(using):
        for level in candidates.due_levels(queue, using=using):
            for job in candidates.due(queue, level, using=using).only("id", "task", "run_at", "attempts")[:left]:
                yield f"#{job.pk}  {queue}  priority {level}  {job.task or 'handler'}  attempt {job.attempts + 1}"
                left -= 1
            if left <= 0:
                yield "... and perhaps more"
                return
    if left == DRY_RUN_JOBS:
        yield f"nothing is due on queues {options.selection}"
