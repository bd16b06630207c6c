"""explain_job(): why one job does not run. explain_queue(): why those of a queue do not, by the first of each gate."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_id, check_queue, readable_key
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.explain.database import Stopwatch, read_only
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, Finding, Look, id_list, iso, reason_in_words, span
from jobqueue.explain.limits import drain_of, limits_of_job, limits_of_whole_queue, pause_at
from jobqueue.explain.row_locks import Locks, row_locks
from jobqueue.explain.rows import ALL_GATES, LEVELS_MAX, Place, ReadJob, read_jobs, read_place, spots_of, unread_place
from jobqueue.explain.stacks import may_wait_for_row, waits_of_workers
from jobqueue.explain.states import (
    at_a_gate,
    due_later,
    ended,
    expired,
    held,
    not_due,
    note_zone,
    running,
    unknown_here,
)
from jobqueue.explain.workers import (
    RunningWorker,
    clock_skew,
    crash_loop,
    host_exhausted,
    no_worker,
    nobody_reaps,
    read_workers,
    serve,
    slow_commits,
    waits_for_worker,
)
from jobqueue.gates.slots import running_ids
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import GroupMember, GroupParent, Job, LaneEntry
from jobqueue.models.group import HELD_BY_PARENTS, PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.ordering.lanes import lane_of

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
        return explain_row(found[0], alias, watch)


def explain_row(job: ReadJob, using: str, watch: Stopwatch) -> list[Explanation]:
    """explain_job() of a row that was read a moment ago, with the database's time as `now`.

    The causes that stop a job for certain are looked at first, while `watch` has time.
    """
    if job.status not in (Job.Status.READY, Job.Status.PROCESSING):
        return [ended(job)]
    # A page of the admin needs to write anyway.
    refusal = read_only(using) if watch.measures and watch.has_time("read_only") else []
    if job.status == Job.Status.PROCESSING:
        first, last = _waits_of(job, using) if watch.has_time(Look.STACKS, "row_lock", statements=5) else ([], [])
        return [*refusal, *nobody_reaps(job), *first, running(job), *last, *watch.told()]
    place = place_in_time(job.queue, job.now, using, watch, [job.task])
    workers = read_workers(using) if watch.has_time(Look.WORKERS) else None
    found = [*refusal, *held(job), *expired(job), *pause_at(place), *reasons_of(job, place, watch)]
    if job.gate == 0 and job.run_at <= job.now and watch.has_time(Look.LIMITS, statements=3):
        found += limits_of_whole_queue(place)
    found += of_workers(place, workers, watch, priority=job.priority, free=not found)
    unknown = [] if any(one.code == "unknown_task" for one in found) else unknown_here(job)
    return [*found, *drain_of(place), *unknown, *clock_skew(workers or [])]


def place_in_time(
    queue: str, now: datetime, using: str, watch: Stopwatch, tasks: Collection[str | None] | None = None
) -> Place:
    """What is set for `queue` and for these tasks in it; None: for any task. Nothing, if there is no time."""
    if watch.has_time(Look.RULES):
        return read_place(queue, now, using, tasks)
    return unread_place(queue, now, using)


def of_workers(
    place: Place, workers: Sequence[RunningWorker] | None, watch: Stopwatch, *, priority: int | None, free: bool
) -> list[Explanation]:
    """no_worker, database_slow and, of due jobs that nothing else holds back (`free`), what they wait for.

    `workers`: all that run; None: they were not read. `priority`: that of the first due job, if one was read.
    """
    asks = free and priority is not None and watch.has_time(Look.STACKS, "workers_busy", statements=6)
    if workers is None:
        return watch.told()
    serving = serve(place.queue, workers)
    watch.note_commits(slow_commits(workers))
    if not serving:
        crashed = crash_loop(place.using) if not workers and watch.has_time() else []
        return [*(crashed or [no_worker([], workers, place.queue)]), *watch.told()]
    if not free:
        return watch.told()
    busy: list[Finding] = []
    if asks and priority is not None:
        watch.claim(place.queue, priority)
        busy = waits_for_worker(serving, [], Locks(place.using), place.using, place.queue)
    found = watch.told() + [one.one for one in sorted(busy, key=lambda one: one.rank)]
    short = host_exhausted([each for worker in serving for each in worker.short])
    return short + found if all(worker.short for worker in serving) else found + short


def _waits_of(job: ReadJob, using: str) -> tuple[list[Explanation], list[Explanation]]:
    """What a running job waits for, surely and maybe: its thread has told so, or sessions wait for a lock."""
    waits = waits_of_workers([job.locked_by], using, job_id=job.pk) if job.locked_by else []
    if waits:
        return waits, []
    found = row_locks(using)
    for_row = may_wait_for_row(job.locked_by, job.pk, using) if found and job.locked_by else None
    return (found, []) if for_row else ([], found if for_row is None else [])


def reasons_of(job: ReadJob, place: Place, watch: Stopwatch) -> list[Explanation]:
    """What a READY job itself waits for, besides what holds for its whole queue."""
    found = [] if job.task is None else pause_at(place, job.task)
    if later := not_due(job):
        # What is open or shut now says nothing about that time.
        return found + (note_zone(later, job, place.using) if watch.has_time() else later)
    if job.gate == KEY_GATE:
        looked = watch.has_time("key")
        found += ordering_key_of(job, place) if looked else []
    elif job.gate == PARENTS_GATE:
        looked = watch.has_time("parents", statements=2)
        found += parents_of(job, place.using) if looked else []
    elif job.gate in (0, FLOW_GATE):
        looked = watch.has_time(Look.LIMITS, statements=5)
        found += limits_of_job(job, place) if looked else []
    else:
        looked = True
    return found or ([at_a_gate(job, looked=looked)] if job.gate not in (0, HELD_GATE) else [])


class _First(NamedTuple):
    """The first job of an ordering key, and how it stands."""

    job_id: int
    state: str
    text: str
    step: str
    waits: str | None = None


def ordering_key_of(job: ReadJob, place: Place) -> list[Explanation]:
    """key, of a job that waits behind its ordering key. One statement."""
    if job.ordering_key is None:
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
        refusal = read_only(alias) if watch.has_time("read_only") else []
        place = place_in_time(name, now, alias, watch)
        looks = watch.has_time(Look.JOBS, statements=9)
        jobs = _first_jobs(place) if looks else _FirstJobs()
        runs = _runs(place) if looks else []
        paused, drain = pause_at(place), drain_of(place)
        found = [*refusal, *paused, *drain] if looks else [*refusal, *paused]
        later = [] if jobs.later is None else _nothing_due(jobs.later, place, watch, cut=jobs.cut)
        if not jobs.gated:
            found += later
        if looks and not any(jobs) and not runs:
            return _unique([*found, _empty(place)])
        workers = read_workers(alias) if watch.has_time(Look.WORKERS) else None
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
