"""The TaskResults of many jobs that were enqueued at once, read with few statements."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

from django.db import Error, connections
from django.db.models import Max, Min

from jobqueue.compat import AnyTask, TaskResult
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job, JobAttempt
from jobqueue.payload import JSON
from jobqueue.tasks import registry
from jobqueue.tasks.results import JobTaskResult, new_result, result_of

logger = logging.getLogger("jobqueue.results")
#: ids in one statement
_CHUNK = 500


def results_of(
    ids: Sequence[int],
    payloads: Sequence[JSON],
    added: Container[int],
    task: AnyTask,
    *,
    alias: str,
    using: str,
) -> list[TaskResult[Any]]:
    """The results of the jobs of `ids`: new ones for those in `added`, others as they are in the database.

    The jobs are there already, so one that cannot be read is shown as a new one.
    """
    held = {job_id for job_id in ids if job_id not in added}
    found: dict[int, TaskResult[Any]] = {}
    created: dict[int, datetime] = {}
    try:
        if held:
            found = retry_transient("result", partial(_existing, held, task, alias, using), using=using)
        created = retry_transient("result", partial(_created, [i for i in ids if i in added], using), using=using)
    except (Error, DatabaseBusy) as error:
        if in_callers_transaction(connections[using]):
            raise
        logger.warning("%d jobs were enqueued but cannot be read: %s", len(ids), error)
    if not ids:
        return []
    now = datetime.now(UTC)
    first = new_result(ids[0], now, task, payloads[0], alias=alias)
    shared = {field.name: getattr(first, field.name) for field in fields(first)}
    return [
        found.get(job_id) or _like(shared, job_id, payload, created.get(job_id, now))
        for job_id, payload in zip(ids, payloads, strict=True)
    ]


def _like(shared: Mapping[str, Any], job_id: int, payload: Any, created_at: datetime) -> TaskResult[Any]:
    """A new result: copied, because the constructor walks through the arguments, as long as the rest takes."""
    made = object.__new__(JobTaskResult)
    own = {
        "id": str(job_id),
        "args": payload["args"],
        "kwargs": payload["kwargs"],
        "enqueued_at": created_at,
        "errors": [],
        "worker_ids": [],
    }
    for name, value in {**shared, **own}.items():
        object.__setattr__(made, name, value)
    return made


def _created(ids: Sequence[int], using: str) -> dict[int, datetime]:
    """When new jobs were created. One statement gives all its rows the same instant."""
    if not ids:
        return {}
    # By ranges of ids: to read each row would take as long as to insert it.
    rows = Job.objects.using(using).filter(pk__gte=min(ids), pk__lte=max(ids)).order_by()
    by_instant = rows.values("created_at").annotate(low=Min("pk"), high=Max("pk"))
    ranges = sorted(by_instant.values_list("low", "high", "created_at"))
    if all(before[1] < after[0] for before, after in pairwise(ranges)):
        lows = [low for low, _, _ in ranges]
        return {job_id: ranges[bisect_right(lows, job_id) - 1][2] for job_id in ids} if ranges else {}
    # Jobs of other transactions lie between these.
    found: dict[int, datetime] = {}
    for part in _parts(ids):
        found.update(Job.objects.using(using).filter(pk__in=part).values_list("pk", "created_at"))
    return found


def _existing(ids: Iterable[int], task: AnyTask, alias: str, using: str) -> dict[int, TaskResult[Any]]:
    found: dict[int, TaskResult[Any]] = {}
    for part in _parts(sorted(ids)):
        jobs = list(Job.objects.using(using).filter(pk__in=part))
        attempts: dict[int, list[JobAttempt]] = defaultdict(list)
        if failed := [job.pk for job in jobs if job.attempts]:
            history = JobAttempt.objects.using(using).filter(job_id__in=failed).order_by("id")
            for attempt in history.exclude(cause__in=(JobAttempt.SNOOZED, JobAttempt.DISCARDED)):
                attempts[attempt.job_id].append(attempt)
        for job in jobs:
            own = (registry.find_task(job.task) if job.task else None) or task
            found[job.pk] = result_of(job, own, alias, attempts[job.pk])
    return found


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[begin : begin + _CHUNK] for begin in range(0, len(ids), _CHUNK))
