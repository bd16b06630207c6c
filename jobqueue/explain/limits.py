"""slot, key, rate and breaker: what the gates of jobs wait for, and who has locked a row of a gate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime

from django.db import Error, connections, transaction
from django.utils.translation import gettext

from jobqueue.conf.known_tasks import spec_at
from jobqueue.db import vendor
from jobqueue.db.diagnostics import RowHolder
from jobqueue.exceptions import NotSupported
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list, iso, rate_text, seconds_until, span
from jobqueue.explain.reading import Place, ReadJob
from jobqueue.explain.row_locks import WAIT_SECONDS, step_to_end
from jobqueue.gates.breaker_states import State, is_over
from jobqueue.gates.buckets import draw
from jobqueue.gates.limits import limits_of
from jobqueue.gates.slots import holders
from jobqueue.gates.subjects import (
    Subject,
    breaker_subject,
    dependency_named,
    pause_subject,
    rate_subject,
    readable_key,
    slot_subject,
    whole_queue_subject,
)
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.gates.whole_queues import limits_of_queue, running_ids
from jobqueue.models import BreakerState, Gate, GateSlot
from jobqueue.payload import JSON

_GATES, _SLOTS, _BREAKERS = (model._meta.db_table for model in (Gate, GateSlot, BreakerState))
#: sessions that the evidence names
SESSIONS_SHOWN = 10


def limits_of_job(job: ReadJob, place: Place) -> list[Explanation]:
    """slot or key, and rate, if its task or its concurrency key has no room. At most three statements.

    A job behind the gate of one of these waits for it, although there may be room again by now.
    """
    if job.task is None or job.gate not in (0, FLOW_GATE):
        return []
    waits_for = (job.wait_reason or "").partition(" ")[0] if job.gate == FLOW_GATE else ""
    slots, rate = limits_of(job.queue, job.task, job.concurrency_key, place.rules)
    slot_gate = slot_subject(job.queue, job.task, job.concurrency_key)
    rate_gate = rate_subject(job.queue, job.task, job.concurrency_key)
    by_slot, by_rate = waits_for in ("slot", "key"), waits_for == "rate"
    wanted = [slot_gate] * (by_slot and slots is None) + [rate_gate] * (by_rate or rate is not None)
    gates = _gates(wanted, place.using)
    found: list[Explanation] = []
    # The job's own process may not know its task; then the gate tells what the limit was.
    most = slots.most if slots is not None else _known(gates, slot_gate, "most")
    if most and (slots is not None or by_slot):
        jobs = holders(slot_gate.number, place.using)
        if by_slot or len(jobs) >= most:
            found.append(_slot(job, most, jobs))
    pace = rate.per_second if rate is not None else _known(gates, rate_gate, "per_second")
    if pace and (rate is not None or by_rate):
        found += _rate(job.queue, job, pace, gates.get(rate_gate.number), place.now, surely=by_rate)
    return sorted(found, key=lambda one: by_rate and one.code != "rate")


def limits_of_whole_queue(place: Place) -> list[Explanation]:
    """slot and rate, if the limits of the queue leave no room, and row_lock, if its gate is locked.

    At most three statements.
    """
    limits = limits_of_queue(place.queue, place.rules)
    if limits.none:
        return []
    found: list[Explanation] = []
    if limits.most:
        jobs = running_ids(place.queue, limits.most, place.using)
        if len(jobs) >= limits.most:
            found.append(_queue_slot(place.queue, limits.most, jobs))
    if limits.per_second:
        subject = whole_queue_subject(place.queue)
        gate = _gates([subject], place.using).get(subject.number)
        found += _rate(place.queue, None, limits.per_second, gate, place.now)
    locks = lock_of_queue(place)
    return [*found, *locks] if is_full(found) else [*locks, *found]


def is_full(found: Sequence[Explanation]) -> bool:
    """Whether the first of these says that all slots are taken."""
    evidence = found[0].evidence if found and found[0].code in ("slot", "key") else {}
    running, limit = evidence.get("running"), evidence.get("limit")
    return isinstance(running, int) and isinstance(limit, int) and running >= limit


def _gates(subjects: Collection[Subject], using: str) -> dict[int, Gate]:
    if not subjects:
        return {}
    return {gate.pk: gate for gate in Gate.objects.using(using).filter(pk__in=[one.number for one in subjects])}


def _known(gates: dict[int, Gate], subject: Subject, column: str) -> float | None:
    gate = gates.get(subject.number)
    value: float | None = None if gate is None else getattr(gate, column)
    return value


def _slot(job: ReadJob, most: float, jobs: Sequence[int]) -> Explanation:
    """Of a task, or of a concurrency key: its code is that of the wait_reason."""
    key = None if job.concurrency_key is None else readable_key(job.concurrency_key)
    facts = {"task": job.task, "queue": job.queue, "key": key, "limit": int(most), "running": len(jobs)}
    facts["jobs"] = id_list(jobs)
    if len(jobs) < most and key is None:
        text = gettext("Task %(task)s has a free slot again in queue %(queue)s: %(running)d of %(limit)d are taken.")
    elif len(jobs) < most:
        text = gettext(
            "The concurrency key %(key)s has a free slot again in queue %(queue)s: %(running)d of %(limit)d are taken."
        )
    elif key is None:
        text = gettext(
            "All slots of task %(task)s in queue %(queue)s are taken: %(running)d of %(limit)d, by %(jobs)s."
        )
    else:
        text = gettext(
            "All slots of the concurrency key %(key)s in queue %(queue)s are taken: %(running)d of %(limit)d, "
            "by %(jobs)s."
        )
    evidence: dict[str, JSON] = {"queue": job.queue, "task": job.task, "concurrency_key": key}
    if key is not None:
        evidence["kind"] = "concurrency"
    return Explanation(
        "slot" if key is None else "key", text % facts, evidence | _taken(most, jobs), _slot_step(len(jobs) < most)
    )


def _queue_slot(queue: str, most: int, jobs: Sequence[int]) -> Explanation:
    text = gettext("All slots of queue %(queue)s are taken: %(running)d of %(limit)d, by %(jobs)s.")
    facts = {"queue": queue, "limit": most, "running": len(jobs), "jobs": id_list(jobs)}
    evidence: dict[str, JSON] = {"queue": queue, "task": None, "concurrency_key": None}
    return Explanation("slot", text % facts, evidence | _taken(most, jobs), _slot_step(False))


def _taken(most: float, jobs: Sequence[int]) -> dict[str, JSON]:
    return {"limit": int(most), "running": len(jobs), "jobs": list(jobs[:JOBS_SHOWN])}


def _slot_step(free: bool) -> str:
    if free:
        return gettext(
            "Wait: the first job that waits for the slot is let in at once, and the others as slots are freed."
        )
    return gettext(
        "The next job starts when one of these ends. If more may run, raise the limit: on the "
        "page of the queue, or with set_limit()."
    )


def _rate(
    queue: str, job: ReadJob | None, per_second: float, gate: Gate | None, now: datetime, *, surely: bool = False
) -> list[Explanation]:
    """[] if a token is there, unless a job `surely` waits for one."""
    _, drawn = draw(gate.used_until if gate is not None else None, now, per_second, 1)
    # With a token there, `opens_at` is when there is the next one.
    next_at = now if drawn.tokens or drawn.opens_at is None else drawn.opens_at
    if drawn.tokens and not surely:
        return []
    key = None if job is None or job.concurrency_key is None else readable_key(job.concurrency_key)
    facts = {"queue": queue, "task": job and job.task, "key": key, "rate": rate_text(per_second)}
    facts["time"] = span(seconds_until(next_at, now))
    if key is not None:
        text = gettext(
            "Jobs with the concurrency key %(key)s in queue %(queue)s start at %(rate)s at most; the next one may "
            "start in %(time)s."
        )
    elif job is not None:
        text = gettext(
            "Jobs of task %(task)s in queue %(queue)s start at %(rate)s at most; the next one may start in %(time)s."
        )
    else:
        text = gettext("Jobs of queue %(queue)s start at %(rate)s at most; the next one may start in %(time)s.")
    evidence: dict[str, JSON] = {
        "queue": queue,
        "task": job.task if job is not None else None,
        "concurrency_key": key,
        "per_second": per_second,
        "next_at": iso(next_at),
        "seconds": seconds_until(next_at, now),
    }
    step = gettext(
        "Wait: those that wait start at this rate. If they may start faster, raise it: on the "
        "page of the queue, or with set_limit()."
    )
    return [Explanation("rate", text % facts, evidence, step)]


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


def breaker_of_job(job: ReadJob, place: Place) -> list[Explanation]:
    """breaker, if it is not closed, or the job waits behind its gate. One statement if the job has a dependency."""
    if job.gate not in (0, FLOW_GATE):
        return []
    waits_for = dependency_named(job.wait_reason or "") if job.gate == FLOW_GATE else None
    dependency = waits_for or job.dependency or spec_at(job.task).dependency
    if dependency is None:
        return []
    row = BreakerState.objects.using(place.using).filter(pk=dependency).first()
    if row is not None and row.state != State.CLOSED and not is_over(row, place.now):
        return [_not_closed(row, place.now)]
    return [_closed_again(dependency, row)] if waits_for else []


def _closed_again(dependency: str, row: BreakerState | None) -> Explanation:
    text = gettext("The circuit breaker of %(name)s is closed again, and the jobs that wait for it are let in.")
    evidence: dict[str, JSON] = {"dependency": dependency, "state": str(State.CLOSED)}
    evidence["since"] = iso(row.since) if row is not None else None
    return Explanation("breaker", text % {"name": dependency}, evidence, gettext("Wait a few seconds."))


def _not_closed(row: BreakerState, now: datetime) -> Explanation:
    since = row.since or row.updated_at
    facts = {
        "name": row.dependency,
        "time": span((now - since).total_seconds()),
        "reason": row.reason or "-",
        "job": row.probe_job,
    }
    if row.state == State.HALF_OPEN:
        text = gettext(
            "The circuit breaker of %(name)s has been open for %(time)s (%(reason)s). Job %(job)s runs as its probe."
        )
        step = gettext("Wait for the probe: if it succeeds, the breaker closes and the other jobs start.")
    else:
        text = gettext(
            "The circuit breaker of %(name)s has been open for %(time)s (%(reason)s), so no job that needs it starts."
        )
        step = _next_look(row, now)
    evidence: dict[str, JSON] = {
        "dependency": row.dependency,
        "state": str(row.state),
        "since": iso(since),
        "reason": row.reason,
        "by_hand": row.by_hand,
        "until": iso(row.until),
        "probe_at": iso(row.probe_at),
        "probe_job": row.probe_job,
    }
    return Explanation("breaker", text % facts, evidence, step)


def _next_look(row: BreakerState, now: datetime) -> str:
    if row.by_hand and row.until is not None:
        text = gettext(
            "It was opened by hand and closes in %(time)s. To close it now, use its page, or breaker(...).close()."
        )
        return text % {"time": span(seconds_until(row.until, now))}
    if row.by_hand:
        return gettext(
            "It was opened by hand and stays open until somebody closes it: on its page, or with breaker(...).close()."
        )
    ahead = seconds_until(row.probe_at or now, now)
    text = gettext("Check whether the service works. One job may start as a probe in %(time)s; its success closes it.")
    return text % {"time": span(ahead)}
