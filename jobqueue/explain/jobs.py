"""explain_job(): why one job does not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.utils.translation import gettext

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.exceptions import InvalidValue
from jobqueue.explain.controls import drain_of, pause_of_queue, pause_of_task
from jobqueue.explain.explanation import Explanation, iso, span
from jobqueue.explain.in_short import job_in_short
from jobqueue.explain.limits import breaker_of_job, is_full, limits_of_job, limits_of_whole_queue, lock_of_job
from jobqueue.explain.monitors import nobody_reaps
from jobqueue.explain.reading import Place, ReadJob, read_jobs, read_place
from jobqueue.explain.refusals import read_only
from jobqueue.explain.row_locks import row_locks
from jobqueue.explain.serving import no_worker, serving, waits_for_worker
from jobqueue.explain.slowness import Stopwatch
from jobqueue.explain.states import at_a_gate, ended, expired, held, not_due, running, unknown_here
from jobqueue.explain.waits import may_wait_for_row, waits_of_workers
from jobqueue.explain.words import reason_in_words
from jobqueue.explain.zones import note_zone
from jobqueue.models import GroupMember, GroupParent, Job, LaneEntry
from jobqueue.models.group import HELD_BY_PARENTS, PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.ordering.lanes import lane_of
from jobqueue.payload import JSON
from jobqueue.validation import check_id, readable_key

_COLUMNS = ("job_id", "halted", "job__status", "job__gate", "job__run_at", "job__wait_reason", "job__locked_by")
State = GroupMember.State
_NAMED = 5


def explain_job(job_id: int | str, *, using: str | None = None, all_causes: bool = False) -> list[Explanation]:
    """Why a job does not run, likeliest first; of one that runs or has ended, what became of it. Never empty.

    In the caller's transaction, by index seeks: at most fifteen statements, whatever the table holds. If the database
    answers slowly, only those that fit into a second, unless `all_causes`. Raises InvalidValue for an id that no job
    has, InvalidType for what is no id.
    """
    number, alias = check_id(job_id), alias_of(using)
    with explain_missing_table(alias):
        watch = Stopwatch(alias, all_causes=all_causes)
        found = watch.first(lambda: read_jobs([number], alias))
        if not found:
            raise InvalidValue(
                f"there is no job {number} in the database {alias!r}: its transaction was rolled back or is still "
                "open, or it was deleted. Nothing was explained; give the id of a job that exists."
            )
        (job,) = found
        lives = job.status in (Job.Status.READY, Job.Status.PROCESSING)
        if lives and watch.is_short_of_time:
            return job_in_short(job, alias, watch)
        return explain_row(job, alias, refusal=read_only(alias) if lives else [], watch=watch)


def explain_row(
    job: ReadJob, using: str, *, refusal: Sequence[Explanation] = (), watch: Stopwatch | None = None
) -> list[Explanation]:
    """explain_job() of a row that was read a moment ago, with the database's time as `now`.

    `refusal`: that the database refuses writes, if it was asked; a page of the admin needs to write anyway. `watch`
    has measured how long the row took.
    """
    if job.status not in (Job.Status.READY, Job.Status.PROCESSING):
        return [ended(job)]
    if job.status == Job.Status.PROCESSING:
        waits = waits_of_workers([job.locked_by], using, job_id=job.pk) if job.locked_by else []
        first, last = _locks(job, using) if not waits else ([], [])
        return [*refusal, *nobody_reaps(job), *waits, *first, running(job), *last, *(watch.told() if watch else ())]
    place = read_place(job.queue, job.now, using, [job.task])
    found = [*refusal, *held(job), *expired(job), *pause_of_queue(place), *reasons_of(job, place)]
    if job.gate == 0 and job.run_at <= job.now:
        found += limits_of_whole_queue(place)
    workers = serving(place)
    found += no_worker(place, workers)
    # If nothing else keeps it from starting.
    free = not found
    if watch:
        watch.note_commits(workers.commits)
        if free:
            watch.claim(job.queue, job.priority)
        found += watch.told()
    if free:
        found += waits_for_worker(place, workers)
    return [*found, *drain_of(place), *_unknown(job, found), *workers.skew]


def _locks(job: ReadJob, using: str) -> tuple[list[Explanation], list[Explanation]]:
    """row_lock, surely of a running job or maybe of it. Four statements at most."""
    found = row_locks(using)
    waits = may_wait_for_row(job.locked_by, job.pk, using) if found and job.locked_by else None
    return (found, []) if waits else ([], found if waits is None else [])


def reasons_of(job: ReadJob, place: Place) -> list[Explanation]:
    """What a READY job itself waits for, besides what holds for its whole queue."""
    found = [*pause_of_task(place, job.task), *ordering_key_of(job, place), *parents_of(job, place.using)]
    if later := not_due(job):
        # What is open or shut now says nothing about that time.
        return found + note_zone(later, job, place.using)
    breaker = breaker_of_job(job, place)
    limits, locks = limits_of_job(job, place), lock_of_job(job, place, breaker)
    # Slots that are taken are freed whatever is locked; for the others, what was read says when the lock is gone.
    found += [*breaker, *limits, *locks] if is_full(limits) else [*locks, *breaker, *limits]
    return found or ([at_a_gate(job)] if job.gate not in (0, HELD_GATE) else [])


def _unknown(job: ReadJob, found: list[Explanation]) -> list[Explanation]:
    return [] if any(one.code == "unknown_task" for one in found) else unknown_here(job)


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


def parents_of(job: ReadJob, using: str) -> list[Explanation]:
    """parents, if the job waits for parents that have not ended, or is held because of those that did not end well."""
    if job.gate != PARENTS_GATE:
        return []
    held = job.wait_reason == HELD_BY_PARENTS
    states = (State.FAILED, State.CANCELED) if held else (State.OUTSTANDING,)
    pairs = GroupParent.objects.using(using).filter(child_id=job.pk, state__in=states).order_by("pk")
    found = list(pairs.values_list("parent_id", "group_id")[: _NAMED + 1])
    if not found:
        return []
    ids = [parent for parent, _ in found]
    names = dict(GroupMember.objects.using(using).filter(pk__in=ids).values_list("pk", "name"))
    facts = {"id": job.pk, "group": found[0][1], "parents": _listed(ids, names)}
    if held:
        text = gettext("Job %(id)d is held: these parents in workflow %(group)d did not end well: %(parents)s.")
        step = gettext("Resume the workflow (jobs groups resume %(group)d), or retry the parent.")
    else:
        text = gettext("Job %(id)d waits for its parents in workflow %(group)d: %(parents)s.")
        step = gettext("Wait for them, or ask why one does not run: jobs explain with its id.")
    evidence: dict[str, JSON] = {"job_id": job.pk, "workflow_id": found[0][1], "parents": ids[:_NAMED], "held": held}
    return [Explanation("parents", text % facts, evidence, step % facts)]


def _listed(ids: Sequence[int], names: dict[int, str | None]) -> str:
    words = [f"{names.get(number) or '?'} ({number})" for number in ids[:_NAMED]]
    return ", ".join(words + ["..."] * (len(ids) > _NAMED))
