"""row_lock where nobody waits: claims pass over rows of limits and breakers that another session keeps locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from django.db import Error, connections, transaction
from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.db.diagnostics import RowHolder
from jobqueue.exceptions import NotSupported
from jobqueue.explain.explanation import Explanation, span
from jobqueue.explain.reading import Place, ReadJob
from jobqueue.explain.row_locks import WAIT_SECONDS, step_to_end
from jobqueue.gates.breaker_states import State
from jobqueue.gates.limits import limits_of
from jobqueue.gates.subjects import (
    Subject,
    breaker_subject,
    dependency_named,
    pause_subject,
    rate_subject,
    slot_subject,
    whole_queue_subject,
)
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import BreakerState, Gate, GateSlot
from jobqueue.payload import JSON

_GATES, _SLOTS, _BREAKERS = (model._meta.db_table for model in (Gate, GateSlot, BreakerState))
#: sessions that the evidence names
SESSIONS_SHOWN = 10


def lock_of_queue(place: Place) -> list[Explanation]:
    """row_lock, if another session keeps the gate of a limited queue locked. One statement."""
    subject = whole_queue_subject(place.queue)
    return _found({_GATES: {subject.number: subject.wait_reason}}, place, None)


def lock_of_job(job: ReadJob, place: Place, breaker: Sequence[Explanation]) -> list[Explanation]:
    """row_lock, if another session keeps what a due job needs locked: slots, tokens, its gate, a breaker's probe.

    `breaker`: as breaker_of_job() has told it. One statement, if the job waits for one of them or has a limit.
    """
    if job.gate not in (0, FLOW_GATE):
        return []
    wanted: dict[str, dict[int | str, str]] = {}
    slots, rate = limits_of(job.queue, job.task, job.concurrency_key, place.rules)
    if slots is not None:
        wanted.setdefault(_SLOTS, {})[slots.subject.number] = slots.subject.wait_reason
    if rate is not None:
        wanted.setdefault(_GATES, {})[rate.subject.number] = rate.subject.wait_reason
    for subject in _gates_of(job) if job.gate == FLOW_GATE else ():
        wanted.setdefault(_GATES, {})[subject.number] = subject.wait_reason
    for one in breaker:
        dependency = str(one.evidence["dependency"])
        # Only the claim that makes a job its probe locks the row of a breaker.
        if one.evidence["state"] != State.CLOSED and not one.evidence["by_hand"]:
            wanted.setdefault(_BREAKERS, {})[dependency] = breaker_subject(dependency).wait_reason
    return _found(wanted, place, job.task) if wanted else []


def _gates_of(job: ReadJob) -> list[Subject]:
    """What a job that waits at a gate may wait for."""
    dependency = dependency_named(job.wait_reason or "")
    found = [breaker_subject(dependency)] if dependency is not None else []
    if job.task is not None:
        place = (job.queue, job.task, job.concurrency_key)
        found += [slot_subject(*place), rate_subject(*place), pause_subject(job.queue, job.task)]
    return [subject for subject in found if subject.wait_reason == job.wait_reason]


def _found(wanted: Mapping[str, Mapping[int | str, str]], place: Place, task: str | None) -> list[Explanation]:
    """One for each session that surely keeps such a row, or one for all that may."""
    # The name of each row: the numbers of subjects say nothing to people.
    names = {(table, str(key)): name for table, keys in wanted.items() for key, name in keys.items()}
    of_session: dict[int, list[RowHolder]] = {}
    for one in _holders({table: list(keys) for table, keys in wanted.items()}, place.using):
        of_session.setdefault(one.session if one.surely else 0, []).append(one)
    return [_explanation(found, names, place.queue, task) for found in of_session.values()]


def _holders(wanted: Mapping[str, Sequence[int | str]], using: str) -> list[RowHolder]:
    connection = connections[using]
    rows = {table: ("dependency" if table == _BREAKERS else "subject", keys) for table, keys in wanted.items()}
    try:
        with transaction.atomic(using=using) if connection.in_atomic_block else nullcontext():
            return vendor(using).diagnostics.row_holders(connection, rows, WAIT_SECONDS)
    except (Error, NotSupported):
        return []


def _explanation(
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
    evidence: dict[str, JSON] = {
        "blocking": one.session,
        "blocking_statement": one.statement,
        "blocker_idles": one.idles,
        "blocking_seconds": one.seconds,
        "locked": locked,
        "queue": queue,
        "task": task,
        "sessions": list(sessions[:SESSIONS_SHOWN]),
    }
    return Explanation("row_lock", _text(one, len(sessions)) % facts, evidence, step)


def _text(one: RowHolder, sessions: int) -> str:
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
