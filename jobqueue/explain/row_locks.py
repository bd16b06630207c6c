"""row_lock: sessions wait for a lock that another connection holds, or one has forgotten a transaction with locks."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from itertools import islice

from django.apps import apps
from django.db import Error, connections, transaction
from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.db.diagnostics import LockWait, RowHolder
from jobqueue.exceptions import NotSupported
from jobqueue.explain.explanation import Explanation, span
from jobqueue.lockstats.report import read_waits
from jobqueue.models import Job
from jobqueue.payload import JSON

#: shorter waits are usual: two verbs of one job follow each other
WAIT_SECONDS = 1.0
#: an idle transaction is reported after this time if due jobs do not start; how many are reported
FORGOTTEN_SECONDS, FORGOTTEN_MAX = 10.0, 3
#: old transactions that are checked for locks: those of other programs may be older than the one that matters
OLD_MAX = 100


def row_locks(using: str) -> list[Explanation]:
    """row_lock for each connection for which sessions have waited longer than WAIT_SECONDS. Three statements at most.

    For locks on any table of this database, those on the job table first. If the server does not show lock waits, or
    not to this account, nothing is found.
    """
    if not vendor(using).diagnostics.available:
        return []
    blockers: dict[int, list[LockWait]] = {}
    for wait in read_waits(using=using):
        if wait.seconds >= WAIT_SECONDS and _is_here(wait):
            blockers.setdefault(wait.blocking, []).append(wait)
    waiting = {wait.waiting for waits in blockers.values() for wait in waits}
    # One that waits itself is not the cause. 0: the server names no connection, as for a prepared transaction.
    found = [
        (_is_of(waits, {Job._meta.db_table}), _explanation(blocking, waits))
        for blocking, waits in blockers.items()
        if blocking not in waiting and (blocking or any(wait.mode == "metadata" for wait in waits))
    ]
    return [one for _, one in sorted(found, key=lambda pair: not pair[0])]


def is_of_jobs(one: Explanation) -> bool:
    """Whether a row_lock is about the job table."""
    return _table(str(one.evidence["locked"])) == Job._meta.db_table


def locked_tables(using: str) -> list[Explanation]:
    """row_lock, if a whole table of this package is locked: reading jobs would wait, too.

    Also if nobody waits for it yet, where the server tells who has locked it.
    """
    tables = {model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()}
    found = [one for one in row_locks(using) if one.evidence["locked"] in tables | {"table"}]
    told = {one.evidence["blocking"] for one in found}
    return found + [_of_table(one) for one in _table_holders(tables, using) if one.session not in told]


def waits_in_words(using: str) -> list[Explanation]:
    """The findings of row_locks() and locked_tables(), for an error message; [] if they cannot be read."""
    try:
        found = row_locks(using)
        return found + [one for one in locked_tables(using) if one not in found]
    except Error:
        return []


def _table_holders(tables: Collection[str], using: str) -> list[RowHolder]:
    connection = connections[using]
    try:
        with transaction.atomic(using=using) if connection.in_atomic_block else nullcontext():
            return vendor(using).diagnostics.table_holders(connection, sorted(tables))
    except (Error, NotSupported):
        return []


def _of_table(one: RowHolder) -> Explanation:
    text = gettext(
        "Connection %(blocking)d has locked a whole table (%(locked)s): whoever reads or writes it has to wait. Its "
        "statement: %(statement)s"
    )
    facts = {"blocking": one.session, "locked": one.table, "statement": one.statement or "-"}
    evidence: dict[str, JSON] = {
        "blocking": one.session,
        "blocking_statement": one.statement,
        "blocker_idles": one.idles,
        "blocking_seconds": one.seconds,
        "locked": one.table,
    }
    return Explanation("row_lock", text % facts, evidence, step_to_end(one.session))


def forgotten(using: str) -> list[Explanation]:
    """row_lock for transactions with locks that have done nothing for a while, though nobody waits for them."""
    try:
        with transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext():
            old = vendor(using).set_up.old_transactions(
                connections[using], Job._meta.db_table, FORGOTTEN_SECONDS, OLD_MAX
            )
            idle = (one for one in old if one.idles and one.locks and _may_lock_jobs(one.session, using))
            found = list(islice(idle, FORGOTTEN_MAX))
    except (Error, NotSupported):
        return []
    text = gettext(
        "Connection %(blocking)d has had a transaction open for %(time)s, holds locks and does nothing. Claims pass "
        "over the rows that it has locked, so due jobs may not start."
    )
    return [
        Explanation(
            "row_lock",
            text % {"blocking": one.session, "time": span(one.seconds)},
            {"blocking": one.session, "blocker_idles": True, "blocking_seconds": one.seconds, "locked": ""},
            step_to_end(one.session),
        )
        for one in found
    ]


def _may_lock_jobs(session: int, using: str) -> bool:
    return vendor(using).diagnostics.may_lock(connections[using], session, Job._meta.db_table)


def _table(locked: str) -> str:
    # "job_queue, index PRIMARY, record 1", or "job_queue, row (0,1)"
    return locked.partition(",")[0].rpartition(".")[2].strip('`"')


def _is_of(waits: Collection[LockWait], tables: Collection[str]) -> bool:
    return any(_table(wait.locked) in tables for wait in waits)


def _is_here(wait: LockWait) -> bool:
    """Whether it is no wait in another database of the server, whose name stands before that of the table."""
    return _table(wait.locked) == Job._meta.db_table or "." not in wait.locked.partition(",")[0]


def step_to_end(blocking: int) -> str:
    """What to do about a connection that holds a lock."""
    step = gettext("Find out what connection %(blocking)d does, and let it commit, or end it in the server.")
    return step % {"blocking": blocking}


def _explanation(blocking: int, waits: list[LockWait]) -> Explanation:
    longest = max(waits, key=lambda wait: (_is_of([wait], {Job._meta.db_table}), wait.seconds))
    facts = {
        "blocking": blocking,
        "number": len({wait.waiting for wait in waits}),
        "time": span(longest.seconds),
        "locked": longest.locked,
        "waiting": longest.waiting_statement or "-",
        "statement": longest.blocking_statement or "-",
    }
    step = step_to_end(blocking)
    if not blocking:
        text = gettext(
            "Sessions wait for a lock on a whole table: %(number)d, for up to %(time)s. The server does not say which "
            "connection holds it. One of their statements: %(waiting)s"
        )
        step = gettext("Find out who has locked the table (SHOW PROCESSLIST), and let it unlock it, or end it.")
    elif longest.blocker_idles:
        text = gettext(
            "Sessions wait for a lock: %(number)d, for up to %(time)s. Connection %(blocking)d holds "
            "it (%(locked)s) in a transaction that is open and does nothing. Its last statement: %(statement)s"
        )
    else:
        text = gettext(
            "Sessions wait for a lock: %(number)d, for up to %(time)s. Connection %(blocking)d holds "
            "it (%(locked)s). Its statement: %(statement)s"
        )
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
