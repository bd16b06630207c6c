"""explain_job(): why one job does not run."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.exceptions import InvalidValue
from jobqueue.explain.breakers import breaker_of_job
from jobqueue.explain.controls import drain_of, pause_of_queue, pause_of_task
from jobqueue.explain.explanation import Explanation
from jobqueue.explain.gate_locks import lock_of_job
from jobqueue.explain.in_short import job_in_short
from jobqueue.explain.limits import is_full, limits_of_job, limits_of_whole_queue
from jobqueue.explain.monitors import nobody_reaps
from jobqueue.explain.ordering_keys import ordering_key_of
from jobqueue.explain.parents import parents_of
from jobqueue.explain.reading import Place, ReadJob, read_jobs, read_place
from jobqueue.explain.refusals import read_only
from jobqueue.explain.row_locks import row_locks
from jobqueue.explain.serving import no_worker, serving, waits_for_worker
from jobqueue.explain.slowness import Stopwatch
from jobqueue.explain.states import at_a_gate, ended, expired, held, not_due, running, unknown_here
from jobqueue.explain.waits import may_wait_for_row, waits_of_workers
from jobqueue.explain.zones import note_zone
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE
from jobqueue.validation import check_id


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
