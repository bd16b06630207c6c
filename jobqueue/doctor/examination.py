"""Runs the checks one after another. One that fails is a finding, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

from django.db import Error, connections, transaction

from jobqueue.db import is_lost_connection
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.sockets import ping
from jobqueue.db.time_limit import time_limit
from jobqueue.doctor.brokers import brokers, redis_servers
from jobqueue.doctor.claim_plan import claim_plan
from jobqueue.doctor.clocks import clock_skew, session_zone
from jobqueue.doctor.events import unrouted_events
from jobqueue.doctor.finding import Finding, Level
from jobqueue.doctor.firing_alarms import firing_alarms
from jobqueue.doctor.foreign_claimers import foreign_claimers
from jobqueue.doctor.leases import lapsed_leases, lease_length
from jobqueue.doctor.nested_retries import nested_retries
from jobqueue.doctor.schedules import schedules
from jobqueue.doctor.schema import indexes, migrations, tables
from jobqueue.doctor.server import default_isolation, driver_timeouts, read_only, server_values
from jobqueue.doctor.sessions import connection_budget, dead_rows, locked_tables, old_transactions
from jobqueue.doctor.sqlite_file import sqlite_file
from jobqueue.doctor.system_checks import server, settings, task_modules
from jobqueue.doctor.workers import unserved_queues, worker_versions, workers
from jobqueue.exceptions import NotSupported
from jobqueue.models import Job


class Need(StrEnum):
    """What must be there for a check to make sense."""

    NOTHING = "nothing"
    DATABASE = "database"
    TABLES = "tables"


@dataclass(frozen=True, slots=True)
class Check:
    """`look` gets the alias of the queue's database."""

    name: str
    title: str  # what is right if it finds nothing
    need: Need
    look: Callable[[str], Iterable[Finding]]
    beside: bool = False  # it asks servers beside the database, each of which may take seconds


@dataclass(frozen=True, slots=True)
class Checked:
    """A check, and what it found. None: it was left out, because what it needs is not there."""

    check: Check
    findings: list[Finding] | None


CHECKS = [
    Check("task_modules", "all tasks.py can be imported", Need.NOTHING, task_modules),
    Check("settings", "the settings, the tasks and the routes are right", Need.NOTHING, settings),
    Check("driver", "the driver does not wait without a limit", Need.NOTHING, driver_timeouts),
    Check("lease", "leases are long enough", Need.NOTHING, lease_length),
    Check("brokers", "the brokers of outbox routes answer", Need.NOTHING, brokers, beside=True),
    Check("redis", "the Redis servers of the settings answer", Need.NOTHING, redis_servers, beside=True),
    Check("table_locks", "no table of jobqueue is locked as a whole", Need.DATABASE, locked_tables),
    Check("writes", "the database takes writes", Need.DATABASE, read_only),
    Check("server", "the server, its sessions and the job table are fit for a queue", Need.DATABASE, server),
    Check("server_values", "the settings of the server are fit for a queue", Need.DATABASE, server_values),
    Check("sqlite_file", "the file of SQLite is on a local disk", Need.DATABASE, sqlite_file),
    Check("isolation", "the server's own isolation level is READ COMMITTED", Need.DATABASE, default_isolation),
    Check("clock", "the clocks of this host and the server agree", Need.DATABASE, clock_skew),
    Check("zone", "NOW() of a session is UTC", Need.DATABASE, session_zone),
    Check("migrations", "all migrations of jobqueue were run", Need.DATABASE, migrations),
    Check("tables", "all tables of jobqueue are there", Need.TABLES, tables),
    Check("indexes", "all indexes of jobqueue are there, with their columns", Need.TABLES, indexes),
    Check("claim_plan", "claims go by ix_pick, without a sort", Need.TABLES, claim_plan),
    Check("connections", "the server has room for the connections of all workers", Need.TABLES, connection_budget),
    Check("transactions", "no transaction is open for long", Need.DATABASE, old_transactions),
    Check("dead_rows", "dead rows of the job table are removed", Need.TABLES, dead_rows),
    Check("workers", "workers run, and send heartbeats", Need.TABLES, workers),
    Check("versions", "all workers run one version", Need.TABLES, worker_versions),
    Check("served", "all queues with jobs are served", Need.TABLES, unserved_queues),
    Check("leases", "no lease has lapsed", Need.TABLES, lapsed_leases),
    Check("claimers", "all claimers know the limits of their queues", Need.TABLES, foreign_claimers),
    Check("retries", "retries do not multiply", Need.TABLES, nested_retries),
    Check("schedules", "schedules fire on time", Need.TABLES, schedules),
    Check("events", "all events have a route", Need.TABLES, unrouted_events),
    Check("alarms", "no alarm fires", Need.TABLES, firing_alarms),
]
_ORDER = list(Level)
#: checks whose advice is wrong while the database refuses writes: nobody can do it
_OF_WRITERS = ("workers", "leases", "alarms")
#: how long each SELECT of a check may take; and, once one has taken so long, those of the other checks. Something is
#: locked, perhaps, of which the server does not tell who holds it.
READ_SECONDS, HASTE_SECONDS = 4.0, 0.5
#: so long after the first one, no check of the database begins any more
LIMIT_SECONDS = 8.0


def examine(using: str | None = None) -> list[Finding]:
    """Check the whole set-up of the queue on `using`; what was found, errors first. An empty list: all is right.

    Imports the tasks.py of all apps. An unreachable database is a finding, too. Raises WrongSettings if JOBQUEUE cannot
    be read, and InvalidValue or InvalidType for what is no alias.
    """
    return in_order(check_all(alias_of(using), seconds=READ_SECONDS))


def in_order(checked: Iterable[Checked]) -> list[Finding]:
    """The findings of all checks, errors first."""
    found = [finding for one in checked for finding in one.findings or ()]
    return sorted(found, key=lambda finding: _ORDER.index(finding.level))


def check_all(using: str, *, beside: bool = True, seconds: float | None = None) -> Iterator[Checked]:
    """Run the checks in their order. Those that need a database or tables that are not there are left out.

    beside=False leaves out those that ask other servers. No SELECT runs for longer than `seconds`; once one has, the
    others have less time, and those that would begin after LIMIT_SECONDS are left out. None = no limit.
    """
    reach = Check("database", "the database answers", Need.NOTHING, _unreachable)
    lacking = Need.DATABASE if (found := list(_unreachable(using))) else None
    yield Checked(reach, found)
    refuses, spent = False, 0.0
    for check in CHECKS:
        late = seconds is not None and spent >= LIMIT_SECONDS and check.need is not Need.NOTHING
        left_out = late or check.need is lacking or (lacking is Need.DATABASE and check.need is Need.TABLES)
        left_out = left_out or (check.beside and not beside) or (refuses and check.name in _OF_WRITERS)
        begun = time.monotonic()
        checked = Checked(check, None if left_out else _run(check, using, seconds))
        took = 0.0 if check.need is Need.NOTHING else time.monotonic() - begun
        spent += took
        if seconds is not None and took >= seconds:
            seconds = min(seconds, HASTE_SECONDS)
        if any(map(_lacks_jobs, checked.findings or ())):
            lacking = Need.TABLES
        refuses = refuses or any(finding.id == "read_only" for finding in checked.findings or ())
        if any(finding.id == "table_locked" for finding in checked.findings or ()):
            # Also those that only look at indexes would wait.
            lacking = Need.DATABASE
        yield checked


def _unreachable(using: str) -> Iterator[Finding]:
    try:
        _ping(using)
    except Error as error:
        yield Finding(
            Level.ERROR,
            "database_unreachable",
            f"The database {using!r} cannot be reached: {error}. Enqueueing fails and no job starts.",
            "Start the server, or correct DATABASES. See docs/runbook/database-unreachable.md.",
            {"database": using, "error": str(error)},
        )


def _ping(using: str) -> None:
    """Once more on a new connection, if the server has ended the old one while it was idle."""
    connection = connections[using]
    is_new = connection.connection is None
    try:
        ping(connection)
    except Error:
        if is_new or in_callers_transaction(connection):
            raise
        connection.close()
        ping(connection)


def _lacks_jobs(finding: Finding) -> bool:
    """Whether the job table is not there, or not as this release needs it."""
    missing = finding.evidence.get("tables")
    return finding.id == "migrations_unapplied" or (isinstance(missing, list) and Job._meta.db_table in missing)


def _run(check: Check, using: str, seconds: float | None) -> list[Finding]:
    """What it found, also before it failed."""
    found: list[Finding] = []
    try:
        with nullcontext() if check.need is Need.NOTHING else _isolated(using), _limited(using, check, seconds):
            found.extend(check.look(using))
    except NotSupported as error:
        fix = "Give this account the right, or run jobs doctor with one that has it."
        found.append(Finding(Level.INFO, "not_checked", str(error), fix, {"check": check.name}))
    except Exception as error:
        _close_lost(error, using)
        found.append(_failed(check, f"{type(error).__name__}: {error}"))
    return found


def _failed(check: Check, error: str) -> Finding:
    return Finding(
        Level.WARNING,
        "check_failed",
        f"The check has failed, so it is not known whether {check.title}: {error.rstrip('.')}.",
        "Repair what the error names, then run jobs doctor again. The other checks have been run.",
        {"check": check.name, "error": error},
    )


def _isolated(using: str) -> AbstractContextManager[object]:
    """In a caller's transaction a savepoint: on PostgreSQL no statement works after one that was refused."""
    return transaction.atomic(using=using) if in_callers_transaction(connections[using]) else nullcontext()


def _limited(using: str, check: Check, seconds: float | None) -> AbstractContextManager[object]:
    return nullcontext() if seconds is None or check.need is Need.NOTHING else time_limit(seconds, using=using)


def _close_lost(error: Exception, using: str) -> None:
    """Let the next check open a new connection."""
    if is_lost_connection(error, using) and not in_callers_transaction(connections[using]):
        connections[using].close()
