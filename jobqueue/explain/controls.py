"""paused and draining: what an operator has set for a queue or a task in it, also limits of 0."""

from __future__ import annotations

from django.utils.translation import gettext

from jobqueue.explain.explanation import Explanation, iso, seconds_until, span
from jobqueue.explain.reading import Place
from jobqueue.gates.limits import limits_of
from jobqueue.gates.whole_queues import limits_of_queue
from jobqueue.models import FlowRule
from jobqueue.payload import JSON


def pause_of_queue(place: Place) -> list[Explanation]:
    """paused, if nothing of the queue starts."""
    rule = place.rules.of_queue(place.queue)
    if rule.paused:
        return [_paused(place, "")]
    return [_no_room(place, None)] if limits_of_queue(place.queue, place.rules).paused else []


def pause_of_task(place: Place, task: str | None) -> list[Explanation]:
    """paused, if nothing of the task starts in this queue."""
    if task is None:
        return []
    if place.rules.of_task(place.queue, task).paused:
        return [_paused(place, task)]
    slots, rate = limits_of(place.queue, task, None, place.rules)
    zero = (slots is not None and slots.most == 0) or (rate is not None and rate.per_second == 0)
    return [_no_room(place, task)] if zero else []


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
