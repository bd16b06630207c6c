"""paused, draining, slot, key, rate and breaker: what operators have set, and what the gates of jobs wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.conf.known_tasks import spec_at
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list, iso, rate_text, seconds_until, span
from jobqueue.explain.row_locks import lock_of_job, lock_of_queue
from jobqueue.explain.rows import Place, ReadJob
from jobqueue.gates.buckets import draw
from jobqueue.gates.limits import (
    Subject,
    dependency_named,
    limits_at,
    rate_subject,
    readable_key,
    slot_subject,
    whole_queue_subject,
)
from jobqueue.gates.rules import State, is_over
from jobqueue.gates.slots import holders, running_ids
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import BreakerState, FlowRule, Gate


def pause_at(place: Place, task: str | None = None) -> list[Explanation]:
    """paused, if nothing of the queue, or of `task` in it, starts."""
    rule = place.rules.of_queue(place.queue) if task is None else place.rules.of_task(place.queue, task)
    if rule.paused:
        return [_paused(place, task or "")]
    return [_no_room(place, task)] if limits_at(place.queue, place.rules, task).paused else []


def drain_of(place: Place) -> list[Explanation]:
    """draining, if producers of the queue are refused."""
    row = place.controls.get("")
    if row is None or row.mode != FlowRule.Mode.DRAINING:
        return []
    text = gettext(
        "Queue %(queue)s has been draining for %(time)s: new jobs are refused, and those that are there run. "
        "Reason: %(reason)s"
    )
    return [
        Explanation(
            "draining",
            text % {"queue": place.queue, "time": _age(row, place), "reason": row.reason or "-"},
            _evidence(row, place),
            gettext(
                "Nothing is needed for the jobs that are there. To accept new ones again, resume it: on "
                "the page of the queue, or with resume()."
            ),
        )
    ]


def _paused(place: Place, task: str) -> Explanation:
    row = place.controls[task]
    facts = {"queue": place.queue, "task": task, "time": _age(row, place), "reason": row.reason or "-"}
    if task:
        text = gettext("Task %(task)s has been paused in queue %(queue)s for %(time)s. Reason: %(reason)s") % facts
    else:
        text = gettext("Queue %(queue)s has been paused for %(time)s. Reason: %(reason)s") % facts
    if row.until is not None:
        ends = {"time": span(seconds_until(row.until, place.now))}
        step = (
            gettext(
                "The pause ends by itself in %(time)s. To end it now, resume it: on the page of the "
                "queue, or with resume()."
            )
            % ends
        )
    elif row.by:
        step = gettext(
            "Ask %(by)s, who has paused it, or end the pause: on the page of the queue, or with resume()."
        ) % {"by": row.by}
    else:
        step = gettext("End the pause: on the page of the queue, or with resume().")
    return Explanation("paused", text, _evidence(row, place), step)


def _no_room(place: Place, task: str | None) -> Explanation:
    """A limit of 0 starts nothing, whoever has set it."""
    facts = {"queue": place.queue, "task": task or ""}
    if task is None:
        text = gettext("Queue %(queue)s has a limit of 0, so none of its jobs starts.") % facts
    else:
        text = gettext("Task %(task)s has a limit of 0 in queue %(queue)s, so none of its jobs starts.") % facts
    evidence: dict[str, JSON] = {"queue": place.queue, "task": task, "mode": "paused", "limit": 0}
    return Explanation(
        "paused",
        text,
        evidence,
        gettext("Set another limit, or remove it: on the page of the queue, or with set_limit() and clear_limit()."),
    )


def _age(row: FlowRule, place: Place) -> str:
    return span((place.now - (row.since or row.updated_at)).total_seconds())


def _evidence(row: FlowRule, place: Place) -> dict[str, JSON]:
    return {
        "queue": row.queue,
        "task": row.task or None,
        "mode": str(row.mode),
        "reason": row.reason,
        "by": row.by,
        "since": iso(row.since),
        "until": iso(row.until),
    }


class _Limited(NamedTuple):
    """Whose limit it is: that of a queue, of a task in it, or of a concurrency key of a task."""

    queue: str
    task: str | None = None
    key: str | None = None

    @property
    def evidence(self) -> dict[str, JSON]:
        return {"queue": self.queue, "task": self.task, "concurrency_key": self.key}

    def choose(self, of_queue: str, of_task: str, of_key: str) -> str:
        """The text for this kind of subject."""
        if self.key is not None:
            return of_key
        return of_queue if self.task is None else of_task


def limits_of_job(job: ReadJob, place: Place) -> list[Explanation]:
    """The limits that keep a due job from starting, without its pause, and row_lock. Five statements at most."""
    stops = [one for stop in _STOPS for one in stop(job, place)]
    counted, locks = _slot_and_rate(job, place), lock_of_job(job, place, stops)
    # A full limit comes first: jobs that end free its slots, whatever is locked. All else changes only after the lock.
    return [*stops, *counted, *locks] if _is_full(counted) else [*locks, *stops, *counted]


def _slot_and_rate(job: ReadJob, place: Place) -> list[Explanation]:
    """slot or key, and rate, if its task or its concurrency key has no room. At most three statements.

    A job behind the gate of one of these waits for it, although there may be room again by now.
    """
    if job.task is None or job.gate not in (0, FLOW_GATE):
        return []
    waits_for = (job.wait_reason or "").partition(" ")[0] if job.gate == FLOW_GATE else ""
    own = limits_at(job.queue, place.rules, job.task)
    slot_gate = slot_subject(job.queue, job.task, job.concurrency_key)
    rate_gate = rate_subject(job.queue, job.task, job.concurrency_key)
    by_slot, by_rate = waits_for in ("slot", "key"), waits_for == "rate"
    wanted = [slot_gate] * (by_slot and own.most is None) + [rate_gate] * (by_rate or own.per_second is not None)
    gates = _gates(wanted, place.using)
    # The job's own process may not know its task; then the gate tells what the limit was.
    slots, rate = gates.get(slot_gate.number), gates.get(rate_gate.number)
    most = slots.most if own.most is None and slots is not None else own.most
    pace = rate.per_second if own.per_second is None and rate is not None else own.per_second
    key = None if job.concurrency_key is None else readable_key(job.concurrency_key)
    subject, found = _Limited(job.queue, job.task, key), list[Explanation]()
    if most:
        jobs = holders(slot_gate.number, place.using)
        if by_slot or len(jobs) >= most:
            found.append(_slot(subject, most, jobs))
    if pace:
        found += _rate(subject, pace, rate, place.now, surely=by_rate)
    return sorted(found, key=lambda one: by_rate and one.code != "rate")


def limits_of_whole_queue(place: Place) -> list[Explanation]:
    """slot and rate, if the limits of the queue leave no room, and row_lock, if its gate is locked.

    At most three statements.
    """
    own, subject, found = limits_at(place.queue, place.rules), _Limited(place.queue), list[Explanation]()
    if own.none:
        return found
    if own.most and len(jobs := running_ids(place.queue, own.most, place.using)) >= own.most:
        found.append(_slot(subject, own.most, jobs))
    if own.per_second:
        gate = whole_queue_subject(place.queue)
        found += _rate(subject, own.per_second, _gates([gate], place.using).get(gate.number), place.now)
    locks = lock_of_queue(place)
    return [*found, *locks] if _is_full(found) else [*locks, *found]


def _is_full(found: Sequence[Explanation]) -> bool:
    """Whether the first of these says that all slots are taken."""
    evidence = found[0].evidence if found and found[0].code in ("slot", "key") else {}
    running, limit = evidence.get("running"), evidence.get("limit")
    return isinstance(running, int) and isinstance(limit, int) and running >= limit


def _gates(subjects: Collection[Subject], using: str) -> dict[int, Gate]:
    return Gate.objects.using(using).in_bulk([one.number for one in subjects]) if subjects else {}


def _slot(subject: _Limited, most: int, jobs: Sequence[int]) -> Explanation:
    """Its code is that of the wait_reason."""
    facts = subject._asdict() | {"limit": most, "running": len(jobs), "jobs": id_list(jobs)}
    if len(jobs) < most:
        text = subject.choose(
            "",
            gettext("Task %(task)s has a free slot again in queue %(queue)s: %(running)d of %(limit)d are taken."),
            gettext(
                "The concurrency key %(key)s has a free slot again in queue %(queue)s: %(running)d of %(limit)d are "
                "taken."
            ),
        )
        step = gettext(
            "Wait: the first job that waits for the slot is let in at once, and the others as slots are freed."
        )
    else:
        text = subject.choose(
            gettext("All slots of queue %(queue)s are taken: %(running)d of %(limit)d, by %(jobs)s."),
            gettext("All slots of task %(task)s in queue %(queue)s are taken: %(running)d of %(limit)d, by %(jobs)s."),
            gettext(
                "All slots of the concurrency key %(key)s in queue %(queue)s are taken: %(running)d of %(limit)d, "
                "by %(jobs)s."
            ),
        )
        step = gettext(
            "The next job starts when one of these ends. If more may run, raise the limit: on the "
            "page of the queue, or with set_limit()."
        )
    evidence = subject.evidence | {"limit": most, "running": len(jobs), "jobs": list(jobs[:JOBS_SHOWN])}
    if subject.key is not None:
        evidence["kind"] = "concurrency"
    return Explanation("slot" if subject.key is None else "key", text % facts, evidence, step)


def _rate(
    subject: _Limited, per_second: float, gate: Gate | None, now: datetime, *, surely: bool = False
) -> list[Explanation]:
    """[] if a token is there, unless a job `surely` waits for one."""
    _, drawn = draw(gate.used_until if gate is not None else None, now, per_second, 1)
    # With a token there, `opens_at` is when there is the next one.
    next_at = now if drawn.tokens or drawn.opens_at is None else drawn.opens_at
    if drawn.tokens and not surely:
        return []
    facts = subject._asdict() | {"rate": rate_text(per_second), "time": span(seconds_until(next_at, now))}
    text = subject.choose(
        gettext("Jobs of queue %(queue)s start at %(rate)s at most; the next one may start in %(time)s."),
        gettext(
            "Jobs of task %(task)s in queue %(queue)s start at %(rate)s at most; the next one may start in %(time)s."
        ),
        gettext(
            "Jobs with the concurrency key %(key)s in queue %(queue)s start at %(rate)s at most; the next one may "
            "start in %(time)s."
        ),
    )
    seconds = seconds_until(next_at, now)
    evidence = subject.evidence | {"per_second": per_second, "next_at": iso(next_at), "seconds": seconds}
    step = gettext(
        "Wait: those that wait start at this rate. If they may start faster, raise it: on the "
        "page of the queue, or with set_limit()."
    )
    return [Explanation("rate", text % facts, evidence, step)]


def _breaker(job: ReadJob, place: Place) -> list[Explanation]:
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


#: what stops a job whatever slots and tokens there are, in the order of gates.kinds.KINDS
_STOPS = (_breaker,)
