"""row_lock: sessions wait for a lock on rows of the job table that another connection holds."""

from __future__ import annotations

from django.utils.translation import gettext

from jobqueue.db.lock_facts import LockWait
from jobqueue.explain.explanation import Explanation, span
from jobqueue.explain.findings import Findings
from jobqueue.lockstats.report import read_waits
from jobqueue.models import Job
from jobqueue.payload import JSON

#: shorter waits are usual: two verbs of one job follow each other
WAIT_SECONDS = 1.0


def row_lock(findings: Findings, using: str) -> None:
    """Add what row_locks() finds."""
    for one in row_locks(using):
        findings.add(one, (), 0)


def row_locks(using: str) -> list[Explanation]:
    """row_lock for each connection for which sessions have waited longer than WAIT_SECONDS. One statement or two.

    If the server does not show lock waits, or not to this account, nothing is found.
    """
    table = Job._meta.db_table
    blockers: dict[int, list[LockWait]] = {}
    for wait in read_waits(using=using):
        # "job_queue, index PRIMARY, record 1", or "job_queue, row (0,1)"
        if wait.locked.partition(",")[0].rpartition(".")[2].strip('`"') == table and wait.seconds >= WAIT_SECONDS:
            blockers.setdefault(wait.blocking, []).append(wait)
    waiting = {wait.waiting for waits in blockers.values() for wait in waits}
    # One that waits itself is not the cause. 0: the server names no connection, as for a prepared transaction.
    return [
        _explanation(blocking, waits) for blocking, waits in blockers.items() if blocking and blocking not in waiting
    ]


def _explanation(blocking: int, waits: list[LockWait]) -> Explanation:
    longest = max(waits, key=lambda wait: wait.seconds)
    facts = {
        "blocking": blocking,
        "number": len({wait.waiting for wait in waits}),
        "time": span(longest.seconds),
        "locked": longest.locked,
        "waiting": longest.waiting_statement or "-",
        "statement": longest.blocking_statement or "-",
    }
    if longest.blocker_idles:
        text = gettext(
            "Sessions wait for a lock on the job table: %(number)d, for up to %(time)s. Connection %(blocking)d holds "
            "it (%(locked)s) in a transaction that is open and does nothing. Its last statement: %(statement)s"
        )
    else:
        text = gettext(
            "Sessions wait for a lock on the job table: %(number)d, for up to %(time)s. Connection %(blocking)d holds "
            "it (%(locked)s). Its statement: %(statement)s"
        )
    step = gettext("Find out what connection %(blocking)d does, and let it commit, or end it in the server.") % facts
    evidence: dict[str, JSON] = {
        "blocking": blocking,
        "blocking_statement": longest.blocking_statement,
        "blocker_idles": longest.blocker_idles,
        "blocking_seconds": longest.blocking_seconds,
        "waiting": sorted({wait.waiting for wait in waits}),
        "waiting_statement": longest.waiting_statement,
        "seconds": longest.seconds,
        "locked": longest.locked,
    }
    return Explanation("row_lock", text % facts, evidence, step)
