"""python manage.py runworker: work until told to stop."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import Error

from jobqueue.cli import dry_run, logs, pidfile, streams, worker_options
from jobqueue.worker.monitor.preflight import MISCONFIGURED, UNREACHABLE
from jobqueue.worker.supervisor import Supervisor


class Command(BaseCommand):
    """Exit status: 0 done, 1 unexpected, 2 usage, 3 no database or tables, 4 configuration, 5 --fail-on-error and a
    job failed, 75 the database was unreachable for longer than --db-retry, 128 + N forced by a second signal N.
    """

    help = "Run jobs: a supervisor with child processes and threads. Stops gracefully on SIGTERM and SIGINT."
    # The monitor process checks what a worker needs, so that this one never opens a connection.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Every option is also JOBQUEUE_WORKER_<OPTION>."""
        worker_options.declare(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        """Build the options, run the supervisor, exit with its status."""
        streams.open_missing()
        try:
            options = worker_options.build(given)
        except ImproperlyConfigured as error:
            self.stderr.write(str(error))
            sys.exit(MISCONFIGURED)
        if given["dry_run"]:
            try:
                dry_run.show(options, self.stdout)
            except Error as error:
                self.stderr.write(f"the queue on {options.database!r} cannot be read: {error}. Is it migrated?")
                sys.exit(UNREACHABLE)
            return
        logs.set_up(given["verbosity"], given["log_format"], self.style)
        with pidfile.held(given["pidfile"]):
            status = Supervisor(options).run()
        if status:
            sys.exit(status)
