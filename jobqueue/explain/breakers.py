"""breaker: the circuit breaker of the outside service that a job needs."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext

from jobqueue.conf.known_tasks import spec_at
from jobqueue.explain.explanation import Explanation, iso, seconds_until, span
from jobqueue.explain.reading import Place, ReadJob
from jobqueue.gates.breaker_states import State, is_over
from jobqueue.gates.subjects import dependency_named
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import BreakerState
from jobqueue.payload import JSON


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
