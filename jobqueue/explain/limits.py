"""slot, key and rate: limits of a task, of a concurrency key, and of a whole queue."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.utils.translation import gettext

from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list, iso, rate_text, seconds_until, span
from jobqueue.explain.gate_locks import lock_of_queue
from jobqueue.explain.reading import Place, ReadJob
from jobqueue.gates.buckets import draw
from jobqueue.gates.limits import limits_of
from jobqueue.gates.slots import holders
from jobqueue.gates.subjects import Subject, rate_subject, readable_key, slot_subject, whole_queue_subject
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.gates.whole_queues import limits_of_queue, running_ids
from jobqueue.models import Gate
from jobqueue.payload import JSON


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
