"""The checks before a worker starts, and the banner that it logs."""

from __future__ import annotations

import logging
from contextlib import suppress

import django
from django.conf import settings
from django.db import Error, connections

import jobqueue
from jobqueue.checks import packet_problem, pending_migrations, problems
from jobqueue.conf import load
from jobqueue.db import Problem, vendor
from jobqueue.db.alias import is_in_memory
from jobqueue.db.opening import pool_problem
from jobqueue.db.retry import retry_transient
from jobqueue.durations import format_seconds
from jobqueue.exceptions import DatabaseBusy
from jobqueue.tasks.setting import unused_problem
from jobqueue.worker.monitor import unserved
from jobqueue.worker.shared.worker_options import MONITOR_CONNECTIONS, Options

logger = logging.getLogger("jobqueue.worker")

UNREACHABLE, MISCONFIGURED = 3, 4


def preflight(options: Options) -> int:
    """Check the database and log the banner; returns 0.

    Otherwise logs the reason and returns the exit status: 3 without the database or its tables, 4 for a configuration
    that no worker can use.
    """
    connection = connections[options.database]
    if why := _unusable(options.database):
        logger.error("DATABASES[%r] %s", options.database, why)
        return MISCONFIGURED
    try:
        found = retry_transient("check", lambda: vendor(options.database), using=options.database)
        if not found.supported:
            logger.error("%s is not supported; use MySQL, MariaDB, PostgreSQL or SQLite", connection.vendor)
            return MISCONFIGURED
        missing = retry_transient("check", lambda: pending_migrations(options.database), using=options.database)
        isolation = retry_transient("check", lambda: found.isolation(connection), using=options.database)
        wrong = [] if missing else retry_transient("check", lambda: _wrong(options.database), using=options.database)
        packet = retry_transient("check", lambda: packet_problem(connection, load()), using=options.database)
    except (Error, DatabaseBusy) as error:
        logger.error("the database %r cannot be reached: %s. Start it or correct DATABASES.", options.database, error)
        return UNREACHABLE
    if missing:
        logger.error(
            "the tables of %s are not there on %r. Run: python manage.py migrate --database %s",
            ", ".join(missing),
            options.database,
            options.database,
        )
        return UNREACHABLE
    for text, hint in wrong:
        logger.error("%s %s", text, hint)
    if wrong:
        return MISCONFIGURED
    _banner(options, found.describe(connection), found.claim_strategy, isolation)
    needed = max(MONITOR_CONNECTIONS, options.connections_per_child + options.concurrency)
    _warn(packet, unused_problem(), pool_problem(connection, needed))
    with suppress(Error, DatabaseBusy):  # a hint; housekeeping looks again
        retry_transient("check", lambda: unserved.warn(options), using=options.database)
    return 0


def _unusable(using: str) -> str:
    """Why no worker can use a database, whatever its server says."""
    if not connections[using].settings_dict["AUTOCOMMIT"]:
        return "has AUTOCOMMIT False: nothing a worker writes would be kept."
    if is_in_memory(using):
        return (
            "is SQLite in memory: each process has a database of its own, so a worker finds neither tables nor jobs. "
            "Give it a file as NAME: docs/howto/sqlite.md"
        )
    return ""


def _wrong(using: str) -> list[tuple[str, str]]:
    """The errors that `check --database` would report, with their hints."""
    return [(text, hint) for code, text, hint in problems(using) if code.startswith("E")]


def _warn(*problems: Problem | None) -> None:
    """Log the warnings of `check` that explain most of what a worker does unexpectedly."""
    for problem in problems:
        if problem is not None and f"jobqueue.{problem.code}" not in settings.SILENCED_SYSTEM_CHECKS:
            logger.warning("%s %s", problem.text, problem.hint)


def _banner(options: Options, database: str, strategy: str, isolation: str) -> None:
    name = f"{options.name}:{options.boot_id}"
    logger.info("jobqueue %s on Django %s, %s; worker %s", jobqueue.__version__, django.__version__, database, name)
    logger.debug(
        "claims up to %d jobs by %s, isolation %s; leases of %s, renewed every %s; idle polls every %s to %s",
        options.batch_size,
        strategy,
        isolation,
        format_seconds(options.lease_seconds),
        format_seconds(options.heartbeat_seconds),
        format_seconds(options.poll_low_seconds),
        format_seconds(options.poll_high_seconds),
    )
