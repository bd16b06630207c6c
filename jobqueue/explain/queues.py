"""explain_queue(): why the jobs of a queue do not start, told by the first of them behind each gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from django.utils.translation import gettext

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.explain.controls import drain_of, pause_of_queue
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list, iso, seconds_until, span
from jobqueue.explain.in_short import queue_in_short
from jobqueue.explain.jobs import reasons_of
from jobqueue.explain.limits import limits_of_whole_queue
from jobqueue.explain.reading import Place, ReadJob, read_jobs, read_place
from jobqueue.explain.ready_jobs import ALL_GATES, LEVELS_MAX, first_of_level
from jobqueue.explain.refusals import read_only
from jobqueue.explain.serving import Serving, no_worker, serving, waits_for_worker
from jobqueue.explain.slowness import Stopwatch
from jobqueue.explain.states import expired, held
from jobqueue.explain.waits import waits_of_workers
from jobqueue.explain.zones import note_zone
from jobqueue.gates.levels import levels_below, top_levels
from jobqueue.gates.whole_queues import running_ids
from jobqueue.masking import mask_text
from jobqueue.models import Job
from jobqueue.payload import JSON
from jobqueue.validation import check_queue

#: running jobs are counted up to this
COUNT_MAX = 1000


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
        if watch.is_short_of_time:
            return queue_in_short(name, now, alias, watch)
        place = read_place(name, now, alias)
        firsts = first_jobs(name, place.now, alias)
        wanted = {**firsts.later, **firsts.due}
        jobs = {job.pk: job for job in read_jobs(list(wanted.values()), alias)} if wanted else {}
        due = jobs.get(firsts.due.get(0, 0))
        later = None if 0 in firsts.due else jobs.get(firsts.later.get(0, 0))
        gated = [jobs[job_id] for gate, job_id in sorted(wanted.items(), reverse=True) if gate and job_id in jobs]
        paused = pause_of_queue(place)
        refusal = read_only(alias)
        found = [*refusal, *paused, *drain_of(place)]
        if later is not None and not gated:
            found += _nothing_due(later, place, cut=firsts.cut)
        runs = _runs(place)
        if not jobs and not runs:
            return _unique([*found, _empty(place)])
        workers = serving(place)
        if jobs:
            found += _waits(due, gated, place, workers, watch, stopped=bool(refusal or paused))
        if later is not None and gated:
            found += _nothing_due(later, place, cut=firsts.cut)
        if runs and not any(one.code == "workers_busy" for one in found):
            found += waits_of_workers(workers.told, alias) if workers.told else []
        return _unique(found + runs + workers.skew)


def _waits(
    due: ReadJob | None, gated: list[ReadJob], place: Place, workers: Serving, watch: Stopwatch, *, stopped: bool
) -> list[Explanation]:
    """Of the first due job, and of the first ones behind gates; and whether a worker serves the queue."""
    found = [] if due is None else [*limits_of_whole_queue(place), *expired(due), *reasons_of(due, place)]
    watch.note_commits(workers.commits)
    free = due is not None and not found and not stopped
    if due is not None and free and workers.threads:
        watch.claim(place.queue, due.priority)
        found += [*watch.told(), *waits_for_worker(place, workers)]
    elif free:
        found += [*no_worker(place, workers), *watch.told()]
    for job in gated:
        found += [*held(job), *expired(job), *reasons_of(job, place)]
    return found + ([*no_worker(place, workers), *watch.told()] if not free else [])


def _nothing_due(job: ReadJob, place: Place, *, cut: bool) -> list[Explanation]:
    """Explain the job that is due first."""
    found = expired(job) + [one for one in reasons_of(job, place) if one.code == "unknown_task"]
    if found:
        return found
    seconds = seconds_until(job.run_at, place.now)
    facts = {"queue": place.queue, "id": job.pk, "time": span(seconds), "n": LEVELS_MAX}
    text = gettext("No job of queue %(queue)s is due. The first one, job %(id)d, is due in %(time)s.")
    if cut:
        text = gettext(
            "No job of the %(n)d highest priorities of queue %(queue)s is due; lower ones were not looked at. The "
            "first one, job %(id)d, is due in %(time)s."
        )
    evidence: dict[str, JSON] = {"queue": place.queue, "job_id": job.pk, "run_at": iso(job.run_at), "seconds": seconds}
    evidence["wait_reason"] = mask_text(job.wait_reason or "") or None
    step = gettext("Wait, or let it run now (jobs retry %(id)d).")
    return note_zone([Explanation("not_due", text % facts, evidence, step % facts)], job, place.using)


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


@dataclass(slots=True)
class FirstJobs:
    """Per gate: the id of the first due job, else of the one that is due next, and whether it is due."""

    due: dict[int, int] = field(default_factory=dict)
    later: dict[int, int] = field(default_factory=dict)
    cut: bool = False  # there are more priorities than were looked at


def first_jobs(queue: str, now: datetime, using: str) -> FirstJobs:
    """The first READY jobs of `queue`. Two statements for each priority above and with the first due job.

    Of LEVELS_MAX priorities at most; one more if no job is due.
    """
    answer, earliest = FirstJobs(), dict[int, datetime]()
    found = top_levels([(queue, Job.Status.READY, gate) for gate in ALL_GATES], using)
    for _ in range(LEVELS_MAX):
        runs = [level._asdict() for level in found]
        for _, gate, _, run_at, job_id in first_of_level(using).seek_each(runs):
            if run_at <= now:
                answer.due[gate] = job_id
            elif gate not in earliest or run_at < earliest[gate]:
                earliest[gate], answer.later[gate] = run_at, job_id
        found = levels_below([level for level in found if level.gate not in answer.due], using)
        if not found:
            break
    answer.cut = bool(found)
    return answer
