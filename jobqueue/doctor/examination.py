"""Runs the checks one after another. One that fails is a finding, and the others go on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from django.db import Error, connections, transaction
from django.utils import translation

from jobqueue.db import is_lost_connection
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.sessions import ping
from jobqueue.db.time_limit import time_limit
from jobqueue.doctor import server, tables, work
from jobqueue.doctor.finding import Check, Finding, Level, Need, check, report
from jobqueue.exceptions import NotSupported
from jobqueue.models import Job

#: those of a file in its order; what all jobs need comes first
CHECKS = [found for file in (server, tables, work) for found in vars(file).values() if isinstance(found, Check)]
_ORDER = list(Level)
#: how long each SELECT of a check may take; and, once one has taken so long, those of the other checks. Something is
#: locked, perhaps, of which the server does not tell who holds it.
READ_SECONDS, HASTE_SECONDS = 4.0, 0.5
#: so long after the first one, no check of the database begins any more
LIMIT_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Checked:
    """A check, and what it found. None: it was left out, because what it needs is not there."""

    check: Check
    findings: list[Finding] | None


@dataclass(frozen=True, slots=True)
class Examination:
    """A run of the checks, in their order."""

    checked: list[Checked]
    is_over: bool = False  # its time was over before all checks had begun

    @property
    def findings(self) -> list[Finding]:
        """The findings of all checks, errors first."""
        found = [finding for one in self.checked for finding in one.findings or ()]
        return sorted(found, key=lambda finding: _ORDER.index(finding.level))

    @property
    def passed(self) -> list[str]:
        """The titles of the checks that found nothing."""
        return [one.check.title for one in self.checked if one.findings == []]

    @property
    def left_out(self) -> list[str]:
        """The titles of the checks that were not run."""
        return [one.check.title for one in self.checked if one.findings is None]


def examine(using: str | None = None) -> list[Finding]:
    """Check the whole set-up of the queue on `using`; what was found, errors first. An empty list: all is right.

    Imports the tasks.py of all apps. An unreachable database is a finding, too. Raises WrongSettings if JOBQUEUE cannot
    be read, and InvalidValue or InvalidType for what is no alias.
    """
    return run_checks(alias_of(using)).findings


def run_checks(
    using: str, *, beside: bool = True, seconds: float = READ_SECONDS, limit_seconds: float = math.inf
) -> Examination:
    """Run the checks, as `jobs doctor` and the admin show them; in English.

    beside=False leaves out those that ask other servers. No SELECT runs for longer than `seconds`, and no check begins
    later than `limit_seconds` after the first one.
    """
    until, checked = time.monotonic() + limit_seconds, []
    with translation.override(None):
        for one in check_all(using, beside=beside, seconds=seconds):
            checked.append(one)
            if time.monotonic() > until:
                return Examination(checked, is_over=True)
    return Examination(checked)


def check_all(using: str, *, beside: bool = True, seconds: float = READ_SECONDS) -> Iterator[Checked]:
    """Run the checks in their order. Those that need a database or tables that are not there are left out.

    Once a SELECT has run for `seconds`, the others have less time, and those that would begin after LIMIT_SECONDS are
    left out.
    """
    yield Checked(_answers, found := list(_answers(using)))
    lacking = Need.DATABASE if found else None
    refuses, spent = False, 0.0
    for one in CHECKS:
        left_out = one.need is lacking or (lacking is Need.DATABASE and one.need is Need.TABLES)
        left_out = left_out or (spent >= LIMIT_SECONDS and one.need is not Need.NOTHING)
        left_out = left_out or (one.beside and not beside) or (refuses and one.of_writers)
        begun = time.monotonic()
        found = [] if left_out else _run(one, using, seconds)
        took = 0.0 if one.need is Need.NOTHING else time.monotonic() - begun
        spent += took
        if took >= seconds:
            seconds = min(seconds, HASTE_SECONDS)
        if any(map(_lacks_jobs, found)):
            lacking = Need.TABLES
        refuses = refuses or any(finding.id == "read_only" for finding in found)
        if any(finding.id == "table_locked" for finding in found):
            # Also those that only look at indexes would wait.
            lacking = Need.DATABASE
        yield Checked(one, None if left_out else found)


@check(
    "database",
    "the database answers",
    Need.NOTHING,
    database_unreachable=Level.ERROR,
    # Of any check.
    not_checked=Level.INFO,
    check_failed=Level.WARNING,
)
def _answers(using: str) -> Iterator[Finding]:
    try:
        _ping(using)
    except Error as error:
        yield report(
            "database_unreachable",
            f"The database {using!r} cannot be reached: {error}. Enqueueing fails and no job starts.",
            "Start the server, or correct DATABASES. See docs/runbook/database-unreachable.md.",
            {"database": using, "error": str(error)},
        )


#: what `id` of a finding may be besides the ids of system checks ("jobqueue.E012")
IDS = tuple(id for one in (_answers, *CHECKS) for id in one.ids)


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
    """Return whether the job table is not there, or not as this release needs it."""
    missing = finding.evidence.get("tables")
    return finding.id == "migrations_unapplied" or (isinstance(missing, list) and Job._meta.db_table in missing)


def _run(one: Check, using: str, seconds: float) -> list[Finding]:
    """Run one check; returns what it found, also before it failed."""
    found: list[Finding] = []
    limit = nullcontext() if one.need is Need.NOTHING else time_limit(seconds, using=using)
    try:
        with nullcontext() if one.need is Need.NOTHING else _isolated(using), limit:
            found.extend(one(using))
    except NotSupported as error:
        fix = "Give this account the right, or run jobs doctor with one that has it."
        found.append(report("not_checked", str(error), fix, {"check": one.name}))
    except Exception as error:
        _close_lost(error, using)
        text = f"{type(error).__name__}: {error}"
        found.append(
            report(
                "check_failed",
                f"The check has failed, so it is not known whether {one.title}: {text.rstrip('.')}.",
                "Repair what the error names, then run jobs doctor again. The other checks have been run.",
                {"check": one.name, "error": text},
            )
        )
    return found


def _isolated(using: str) -> AbstractContextManager[object]:
    """A savepoint in a caller's transaction: on PostgreSQL no statement works after one that was refused."""
    return transaction.atomic(using=using) if in_callers_transaction(connections[using]) else nullcontext()


def _close_lost(error: Exception, using: str) -> None:
    """Let the next check open a new connection."""
    if is_lost_connection(error, using) and not in_callers_transaction(connections[using]):
        connections[using].close()
