"""explain_queue(): why the jobs of a queue do not start, told by the first of them behind each gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.utils.translation import gettext

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.explain.database import Stopwatch, read_only
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list
from jobqueue.explain.jobs import OF_LIMITS, OF_STACKS, OF_WORKERS, of_workers, place_in_time, reasons_of
from jobqueue.explain.limits import drain_of, limits_of_whole_queue, pause_at
from jobqueue.explain.rows import ALL_GATES, LEVELS_MAX, Place, ReadJob, read_jobs, spots_of
from jobqueue.explain.stacks import waits_of_workers
from jobqueue.explain.states import due_later, expired, held, note_zone
from jobqueue.explain.workers import RunningWorker, clock_skew, read_workers, serve
from jobqueue.gates.slots import running_ids
from jobqueue.payload import JSON
from jobqueue.validation import check_queue

#: running jobs are counted up to this
COUNT_MAX = 1000
#: what only looks at the jobs of a queue could tell
_OF_JOBS = (
    "held", "expired", "parents", "unknown_task", "not_due", *OF_LIMITS, *OF_STACKS, "workers_busy", "running", "ended",
)  # fmt: skip


def explain_queue(queue: str, *, using: str | None = None, all_causes: bool = False) -> list[Explanation]:
    """Why the jobs of a queue do not start, likeliest first; of one without waiting jobs, that. Never empty.

    In the caller's transaction, by index seeks whose number does not grow with the jobs. Of the jobs behind each gate,
    the first one is looked at. If the database answers slowly, only what fits into a second is, unless `all_causes`.
    Raises InvalidValue and InvalidType for what is no name of a queue.
    """
    name, alias = check_queue(queue), alias_of(using)
    with explain_missing_table(alias):
        watch = Stopwatch(alias, all_causes=all_causes)
        now = watch.first(lambda: read_now(alias))
        refusal = read_only(alias) if watch.has_time("read_only") else []
        place = place_in_time(name, now, alias, watch)
        looks = watch.has_time(*_OF_JOBS, statements=9)
        jobs = _first_jobs(place) if looks else _FirstJobs()
        runs = _runs(place) if looks else []
        paused, drain = pause_at(place), drain_of(place)
        found = [*refusal, *paused, *drain] if looks else [*refusal, *paused]
        later = [] if jobs.later is None else _nothing_due(jobs.later, place, watch, cut=jobs.cut)
        if not jobs.gated:
            found += later
        if looks and not any(jobs) and not runs:
            return _unique([*found, _empty(place)])
        workers = read_workers(alias) if watch.has_time(*OF_WORKERS) else None
        if any(jobs) or not looks:
            found += _waits(jobs, place, workers, watch, stopped=bool(refusal or paused), looks=looks)
        if jobs.gated:
            found += later
        if runs and workers and not any(one.code == "workers_busy" for one in found):
            told = [worker.name for worker in serve(name, workers) if worker.told]
            found += waits_of_workers(told, alias) if told else []
        return _unique([*found, *runs, *([] if looks else drain), *clock_skew(workers or [])])


class _FirstJobs(NamedTuple):
    """The first READY jobs of a queue."""

    due: ReadJob | None = None  # of those at no gate
    later: ReadJob | None = None  # the one that is due next, if none is due
    gated: Sequence[ReadJob] = ()  # one for each gate, due or not
    cut: bool = False  # there are more priorities than were looked at


def _first_jobs(place: Place) -> _FirstJobs:
    """Two statements for each priority above and with the first due job, and one."""
    spots = spots_of([(place.queue, gate) for gate in ALL_GATES], place.now, place.using)
    wanted = {spot.gate: spot.first_due or (spot.delayed.job_id if spot.delayed else 0) for spot in spots}
    jobs = {job.pk: job for job in read_jobs([*wanted.values()], place.using)} if wanted else {}
    gated = [jobs[job_id] for gate, job_id in sorted(wanted.items(), reverse=True) if gate and job_id in jobs]
    first, is_due = jobs.get(wanted.get(0, 0)), any(spot.first_due for spot in spots if spot.gate == 0)
    cut = any(spot.capped for spot in spots)
    return _FirstJobs(first if is_due else None, None if is_due else first, gated, cut)


def _waits(
    jobs: _FirstJobs,
    place: Place,
    workers: Sequence[RunningWorker] | None,
    watch: Stopwatch,
    *,
    stopped: bool,
    looks: bool,
) -> list[Explanation]:
    """Of the first due job, and of the first ones behind gates; and whether a worker serves the queue."""
    due = jobs.due
    own = [] if due is None else [*limits_of_whole_queue(place), *expired(due), *reasons_of(due, place, watch)]
    behind = [one for job in jobs.gated for one in [*held(job), *expired(job), *reasons_of(job, place, watch)]]
    free = (due is not None or not looks) and not own and not stopped
    others = of_workers(place, workers, watch, priority=due.priority if due else None, free=free)
    # What holds back the jobs at gates is no reason of one that is due.
    return [*own, *others, *behind] if free else [*own, *behind, *others]


def _nothing_due(job: ReadJob, place: Place, watch: Stopwatch, *, cut: bool) -> list[Explanation]:
    """Explain the job that is due first."""
    found = expired(job) + [one for one in reasons_of(job, place, watch) if one.code == "unknown_task"]
    if found:
        return found
    text = gettext("No job of queue %(queue)s is due. The first one, job %(id)d, is due in %(time)s.")
    if cut:
        text = gettext(
            "No job of the %(n)d highest priorities of queue %(queue)s is due; lower ones were not looked at. The "
            "first one, job %(id)d, is due in %(time)s."
        )
    one = due_later(job, place.now, text, {"queue": place.queue}, n=LEVELS_MAX)
    return note_zone([one], job, place.using)


def _runs(place: Place) -> list[Explanation]:
    jobs = running_ids(place.queue, COUNT_MAX, place.using)
    if not jobs:
        return []
    facts = {"queue": place.queue, "n": f"{len(jobs)}{'+' if len(jobs) == COUNT_MAX else ''}", "jobs": id_list(jobs)}
    text = gettext("Jobs of queue %(queue)s that run: %(n)s (%(jobs)s).") % facts
    evidence: dict[str, JSON] = {"queue": place.queue, "running": len(jobs), "jobs": list(jobs[:JOBS_SHOWN])}
    step = gettext("Wait until they end, or ask about each of them: jobs explain with its id.")
    return [Explanation("running", text, evidence, step)]


def _empty(place: Place) -> Explanation:
    text = gettext("No job of queue %(queue)s waits or runs: all of them have ended, or there was none.")
    evidence: dict[str, JSON] = {"queue": place.queue, "ready": 0, "running": 0}
    return Explanation("ended", text % {"queue": place.queue}, evidence, gettext("Nothing is needed."))


def _unique(found: list[Explanation]) -> list[Explanation]:
    """Without those that two jobs have told."""
    return [one for place, one in enumerate(found) if one not in found[:place]]
