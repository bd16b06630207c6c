"""retry() for many dead letters in one transaction: those without keys by one UPDATE, the others one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial

from django.db.models import F

from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job
from jobqueue.models.rows import in_state
from jobqueue.producer.life import begins_again
from jobqueue.transitions.operator import make_due, new_life
from jobqueue.transitions.verb import JobRef, run_again_in_groups


def retry_locked(jobs: Sequence[Job], *, using: str) -> list[JobRef]:
    """FAILED -> READY, as retry(), for jobs whose rows this transaction has locked; those that have changed.

    In the order of `jobs`, so that jobs of one ordering key return to it in that order. A job stays FAILED while
    another live job has its dedupe key.
    """
    plain = [job for job in jobs if _is_plain(job)]
    _retry_plain(plain, using)
    run_again_in_groups(plain, using)
    changed = {job.pk for job in plain} | {job.pk for job in jobs if not _is_plain(job) and make_due(job, using)}
    return [JobRef(job.pk, job.queue, job.task, job.ordering_key, using) for job in jobs if job.pk in changed]


def _is_plain(job: Job) -> bool:
    return job.ordering_key is None and job.released_key is None and not job.gate


def _retry_plain(jobs: Sequence[Job], using: str) -> None:
    # By numbers of attempts, as values: MySQL would compute one column from what the same UPDATE has set in another.
    groups: dict[tuple[object, ...], list[Job]] = defaultdict(list)
    now = cache(partial(read_now, using))
    for job in jobs:
        columns = new_life(job) | begins_again(job, now)
        groups[columns["allowance"], columns["max_attempts"], columns.get("options", "")].append(job)
    for group in groups.values():
        rows = in_state([job.pk for job in group], Job.Status.FAILED, using=using)
        changes: dict[str, object] = {**new_life(group[0]), **begins_again(group[0], now), "epoch": F("epoch") + 1}
        if vendor(using).update_by_key(rows, changes) != len(group):
            raise DatabaseBusy(
                "dead letters that were locked have been changed by others. Nothing was written; the step is repeated."
            )
