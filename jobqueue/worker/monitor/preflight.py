"""The checks before a worker starts, the banner that it logs, and a warning of jobs in queues that nobody serves."""

from __future__ import annotations

import logging
from contextlib import suppress
from difflib import get_close_matches

import django
from django.conf import settings
from django.db import Error, connections

import jobqueue
from jobqueue.base.durations import format_seconds
from jobqueue.checks import packet_problem, pending_migrations, problems
from jobqueue.conf import load
from jobqueue.db import Problem, supported, vendor
from jobqueue.db.alias import is_in_memory
from jobqueue.db.retry import retry_transient
from jobqueue.db.sessions import pool_problem
from jobqueue.exceptions import DatabaseBusy
from jobqueue.log_format import one_line
from jobqueue.models import Job, Worker
from jobqueue.tasks.checks import unused_problem
from jobqueue.transitions.claiming import candidates
from jobqueue.worker.shared.queue_choice import Selection, stored_selection
from jobqueue.worker.shared.worker_options import MONITOR_CONNECTIONS, Options

logger = logging.getLogger("jobqueue.worker")

UNREACHABLE, MISCONFIGURED = 3, 4
#: between two looks for queues that nobody serves
UNSERVED_SECONDS = 600.0
NAMES_MAX = 5  # of such queues in the warning
#: jobs of a queue that are counted: the cost must not grow with the backlog
COUNT_MAX = 1000


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
            logger.error("%s is not supported; use %s", connection.vendor, supported())
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
        retry_transient("check", lambda: warn_unserved(options), using=options.database)
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


def warn_unserved(options: Options) -> None:
    """Log a warning while jobs wait in queues that no live worker serves, as after a typing error in --queues.

    Two index seeks per queue, and up to COUNT_MAX index entries of each of the first NAMES_MAX queues.
    """
    selection, using = options.selection, options.database
    if selection.every is not None and not selection.excluded:
        return
    # No worker need serve this queue: if a bench is killed, the next bench removes its jobs.
    waiting = [name for name in candidates.waiting_names(using=using) if name != candidates.BENCH_QUEUE]
    names = [name for name in waiting if not selection.serves(name)]
    others: list[Selection] = []
    if names:
        rows = Worker.objects.using(using).filter(stopped_at__isnull=True).values_list("queues", flat=True)
        others = [stored_selection(text) for text in set(rows)]
    if names := sorted(name for name in names if not any(other.serves(name) for other in others)):
        logger.warning("%s", one_line(_unserved_words(names, selection, using)))


def _unserved_words(names: list[str], selection: Selection, using: str) -> str:
    shown = ", ".join(f"{name} ({_job_count(name, using)})" for name in names[:NAMES_MAX])
    more = f" and {len(names) - NAMES_MAX} other queues" if len(names) > NAMES_MAX else ""
    text = f"jobs wait in queues that no running worker serves: {shown}{more}. This worker serves {selection.words}"
    for name in selection.weights:
        if meant := get_close_matches(name, names, n=1):
            return f"{text}: did you mean {meant[0]}?"
    return f"{text}; name them in --queues here or start a worker for them."


def _job_count(queue: str, using: str) -> str:
    rows = Job.objects.using(using).filter(queue=queue, status=candidates.READY, gate=0)
    # In the order of the index, or PostgreSQL may read the whole table.
    rows = vendor(using).force_index(rows.order_by("priority", "run_at", "id"), candidates.INDEX)
    found = len(rows.values_list("pk", flat=True)[: COUNT_MAX + 1])
    return f"{COUNT_MAX}+" if found > COUNT_MAX else str(found)
