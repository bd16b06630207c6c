"""key: the job in front of one that waits for its turn among those of its ordering key."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext

from jobqueue.explain.explanation import Explanation, iso, span
from jobqueue.explain.reading import Place, ReadJob
from jobqueue.explain.words import reason_in_words
from jobqueue.models import Job, LaneEntry
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.ordering.lanes import lane_of
from jobqueue.payload import JSON
from jobqueue.validation import readable_key

_COLUMNS = ("job_id", "halted", "job__status", "job__gate", "job__run_at", "job__wait_reason", "job__locked_by")


class _First(NamedTuple):
    """The first job of an ordering key, and how it stands."""

    job_id: int
    state: str
    text: str
    step: str
    waits: str | None = None


def ordering_key_of(job: ReadJob, place: Place) -> list[Explanation]:
    """key, if the job waits behind its ordering key. One statement then."""
    if job.gate != KEY_GATE or job.ordering_key is None:
        return []
    rows = LaneEntry.objects.using(place.using).filter(lane=lane_of(job.queue, job.ordering_key))
    found = rows.order_by("lane", "id").values_list(*_COLUMNS)[:1]
    first = _first(job, place, *found[0]) if found else _next_up(job)
    key = readable_key(job.ordering_key)
    text = gettext("Jobs of queue %(queue)s with the ordering key %(key)s run one after another.")
    evidence: dict[str, JSON] = {
        "kind": "ordering",
        "queue": job.queue,
        "ordering_key": key,
        "first_job": first.job_id,
        "first_state": first.state,
        "first_wait_reason": first.waits,
        "run_at": iso(job.run_at),
    }
    whole = text % {"queue": job.queue, "key": key} + " " + first.text
    return [Explanation("key", whole, evidence, first.step)]


def _next_up(job: ReadJob) -> _First:
    text = gettext("Job %(id)d is the first of them, and is let in.") % {"id": job.pk}
    return _First(job.pk, "ready", text, gettext("Wait a few seconds."))


def _first(
    job: ReadJob,
    place: Place,
    first_id: int,
    halted: bool,
    status: int | None,
    gate: int | None,
    run_at: object,
    waits: str | None,
    worker: str | None,
) -> _First:
    facts = {"id": first_id, "worker": worker}
    wait = gettext("Wait for its end.")
    if status == Job.Status.FAILED:
        text = gettext("Job %(id)d, the first of them, has failed.") % facts
        return _First(
            first_id, "failed", text, gettext("Retry or discard it, or let the key go on with resume()."), waits
        )
    if status == Job.Status.PROCESSING:
        return _First(first_id, "running", gettext("Job %(id)d is running in %(worker)s.") % facts, wait)
    if halted:
        text = gettext("An earlier one has failed, and job %(id)d is the next.") % facts
        return _First(first_id, "halted", text, gettext("Let the key go on with resume()."), waits)
    if status != Job.Status.READY:
        text = gettext("Job %(id)d, the first of them, has ended or was deleted, and the next one is let in.") % facts
        return _First(first_id, "ended", text, gettext("Wait a few seconds."))
    if first_id == job.pk:
        return _next_up(job)
    if gate == HELD_GATE:
        text = gettext("Job %(id)d, the first of them, is held after a crash.") % facts
        return _First(first_id, "held", text, gettext("Retry or discard it: nothing happens by itself."), waits)
    return _ready(first_id, gate or 0, run_at, waits, place)


def _ready(first_id: int, gate: int, run_at: object, waits: str | None, place: Place) -> _First:
    facts: dict[str, object] = {"id": first_id}
    step = gettext("Ask why job %(id)d does not run (jobs explain %(id)d).") % facts
    ahead = (run_at - place.now).total_seconds()  # type: ignore[operator]
    if gate:
        facts["reason"] = reason_in_words(waits, gate) or "-"
        text = gettext("Job %(id)d, the first of them, waits: %(reason)s") % facts
        return _First(first_id, "waiting", text, step, waits)
    if ahead > 0:
        facts["time"] = span(ahead)
        text = gettext("Job %(id)d, the first of them, is due in %(time)s.") % facts
        step = gettext("Wait, or let that job run now (jobs retry %(id)d).") % facts
        return _First(first_id, "scheduled", text, step, waits)
    return _First(first_id, "ready", gettext("Job %(id)d, the first of them, waits for a worker.") % facts, step, waits)
