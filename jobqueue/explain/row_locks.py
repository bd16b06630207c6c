"""row_lock: a lock for which sessions wait, that is on a row which claims need, or that a transaction has forgotten."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import islice
from typing import TypeVar

from django.apps import apps
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.diagnostics import Diagnostics, LockWait, OldTransaction, RowHolder
from jobqueue.exceptions import NotSupported
from jobqueue.explain.explanation import Explanation, span
from jobqueue.explain.rows import Place, ReadJob
from jobqueue.gates.kinds import gate_of
from jobqueue.gates.limits import breaker_subject, limits_of, whole_queue_subject
from jobqueue.gates.rules import State
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.lockstats.report import read_waits
from jobqueue.models import BreakerState, Gate, GateSlot, Job

#: shorter waits are usual: two verbs of one job follow each other
WAIT_SECONDS = 1.0
#: an idle transaction is reported after this time if due jobs do not start; how many are reported
FORGOTTEN_SECONDS, FORGOTTEN_MAX = 10.0, 3
#: old transactions that are checked for locks: those of other programs may be older than the one that matters
OLD_MAX = 100
T = TypeVar("T")


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


class Locks:
    """What row_locks() and forgotten() find, each read when it is first asked for."""

    def __init__(self, using: str) -> None:
        self._using = using

    @cached_property
    def waits(self) -> list[Explanation]:
        """Those for which sessions wait."""
        return row_locks(self._using)

    @cached_property
    def idle(self) -> list[Explanation]:
        """Those of forgotten transactions, if sessions wait for none."""
        return [] if self.waits else forgotten(self._using)


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
    holders = _ask(using, lambda server, connection: server.table_holders(connection, sorted(tables)))
    return found + [_of_table(one) for one in holders if one.session not in told]


def waits_in_words(using: str) -> list[Explanation]:
    """The findings of row_locks() and locked_tables(), for an error message; [] if they cannot be read."""
    try:
        found = row_locks(using)
        return found + [one for one in locked_tables(using) if one not in found]
    except Error:
        return []


def _ask(using: str, look: Callable[[Diagnostics, BaseDatabaseWrapper], list[T]]) -> list[T]:
    """What the server tells; [] if it does not, or not to this account. The caller's transaction stays usable."""
    connection = connections[using]
    try:
        with transaction.atomic(using=using) if connection.in_atomic_block else nullcontext():
            return look(vendor(using).diagnostics, connection)
    except (Error, NotSupported):
        return []


def _of_table(one: RowHolder) -> Explanation:
    text = gettext(
        "Connection %(blocking)d has locked a whole table (%(locked)s): whoever reads or writes it has to wait. Its "
        "statement: %(statement)s"
    )
    facts = {"blocking": one.session, "locked": one.table, "statement": one.statement or "-"}
    return Explanation("row_lock", text % facts, _holder(one, one.table), step_to_end(one.session))


def _holder(one: RowHolder, locked: str) -> dict[str, JSON]:
    return {
        "blocking": one.session,
        "blocking_statement": one.statement,
        "blocker_idles": one.idles,
        "blocking_seconds": one.seconds,
        "locked": locked,
    }


def forgotten(using: str) -> list[Explanation]:
    """row_lock for transactions with locks that have done nothing for a while, though nobody waits for them."""

    def look(server: Diagnostics, connection: BaseDatabaseWrapper) -> list[OldTransaction]:
        table = Job._meta.db_table
        old = server.old_transactions(connection, table, FORGOTTEN_SECONDS, OLD_MAX)
        idle = (one for one in old if one.idles and one.locks and server.may_lock(connection, one.session, table))
        return list(islice(idle, FORGOTTEN_MAX))

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
        for one in _ask(using, look)
    ]


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


_GATES, _SLOTS, _BREAKERS = (model._meta.db_table for model in (Gate, GateSlot, BreakerState))
#: sessions that the evidence names
SESSIONS_SHOWN = 10


def lock_of_queue(place: Place) -> list[Explanation]:
    """row_lock, if another session keeps the gate of a limited queue locked. One statement."""
    subject = whole_queue_subject(place.queue)
    return _held_rows({_GATES: {subject.number: subject.wait_reason}}, place, None)


def lock_of_job(job: ReadJob, place: Place, stops: Sequence[Explanation]) -> list[Explanation]:
    """row_lock, if another session keeps what a due job needs locked: slots, tokens, its gate, a breaker's probe.

    `stops`: what stops the job, its breaker among them. One statement, if it waits for one of them or has a limit.
    """
    if job.gate not in (0, FLOW_GATE):
        return []
    wanted: dict[str, dict[int | str, str]] = {}
    slots, rate = limits_of(job.queue, job.task, job.concurrency_key, place.rules)
    if slots is not None:
        wanted.setdefault(_SLOTS, {})[slots.subject.number] = slots.subject.wait_reason
    if rate is not None:
        wanted.setdefault(_GATES, {})[rate.subject.number] = rate.subject.wait_reason
    if job.gate == FLOW_GATE and (subject := gate_of(job)) is not None:
        wanted.setdefault(_GATES, {})[subject.number] = subject.wait_reason
    for one in (stop for stop in stops if stop.code == "breaker"):
        dependency = str(one.evidence["dependency"])
        # Only the claim that makes a job its probe locks the row of a breaker.
        if one.evidence["state"] != State.CLOSED and not one.evidence["by_hand"]:
            wanted.setdefault(_BREAKERS, {})[dependency] = breaker_subject(dependency).wait_reason
    return _held_rows(wanted, place, job.task) if wanted else []


def _held_rows(wanted: Mapping[str, Mapping[int | str, str]], place: Place, task: str | None) -> list[Explanation]:
    """One for each session that surely keeps such a row, or one for all that may."""
    # The name of each row: the numbers of subjects say nothing to people.
    names = {(table, str(key)): name for table, keys in wanted.items() for key, name in keys.items()}
    of_session: dict[int, list[RowHolder]] = {}
    rows = {table: ("dependency" if table == _BREAKERS else "subject", list(keys)) for table, keys in wanted.items()}
    for one in _ask(place.using, lambda server, connection: server.row_holders(connection, rows, WAIT_SECONDS)):
        of_session.setdefault(one.session if one.surely else 0, []).append(one)
    return [_of_row(found, names, place.queue, task) for found in of_session.values()]


def _of_row(
    found: Sequence[RowHolder], names: Mapping[tuple[str, str], str], queue: str, task: str | None
) -> Explanation:
    one, sessions = found[0], list(dict.fromkeys(each.session for each in found))
    locked = f"{one.table}, {names.get((one.table, one.key), one.key)}"
    facts = {
        "blocking": one.session,
        "sessions": ", ".join(map(str, sessions[:SESSIONS_SHOWN])),
        "locked": locked,
        "queue": queue,
        "time": span(one.seconds or 0.0),
        "statement": one.statement or "-",
    }
    step = step_to_end(one.session)
    if len(sessions) > 1:
        step = gettext("Find out which of these connections holds it, and let it commit, or end it in the server.")
    evidence = _holder(one, locked) | {"queue": queue, "task": task, "sessions": list(sessions[:SESSIONS_SHOWN])}
    return Explanation("row_lock", _row_text(one, len(sessions)) % facts, evidence, step)


def _row_text(one: RowHolder, sessions: int) -> str:
    if sessions > 1:
        return gettext(
            "A row that claims of queue %(queue)s need (%(locked)s) is locked, so they pass over its jobs. The server "
            "does not say by whom. Transactions with locks that have been open for a while: %(sessions)s."
        )
    if one.idles:
        return gettext(
            "Connection %(blocking)d holds a lock (%(locked)s) that claims of queue %(queue)s need, so they pass over "
            "its jobs. Its transaction has been open for %(time)s and does nothing. Its last statement: %(statement)s"
        )
    return gettext(
        "Connection %(blocking)d holds a lock (%(locked)s) that claims of queue %(queue)s need, so they pass over "
        "its jobs. Its transaction has been open for %(time)s. Its statement: %(statement)s"
    )
