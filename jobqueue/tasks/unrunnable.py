"""Waiting jobs that the code of this process could not run. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from django.db.models import Case, Count, Min, QuerySet, TextField, When
from django.db.models.fields.json import KeyTextTransform

from jobqueue.db import vendor
from jobqueue.models import Job
from jobqueue.tasks import registry
from jobqueue.tasks.versions import missing_version, version_of
from jobqueue.transitions.claiming.candidates import queue_names

_KIND = ("queue", "task", "payload_version")
#: the order of ix_pick within a queue and status
_CLAIMED = ("gate", "priority", "run_at", "pk")
_Kind: TypeAlias = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """Waiting jobs of one kind, and why a worker with this code would park them."""

    queue: str
    task: str | None  # None: raw rows
    payload_version: int
    jobs: int
    first_id: int
    why: str


def find_unrunnable(*, using: str, most: int | None = None) -> tuple[list[Unrunnable], bool]:
    """All kinds among the READY jobs, by queue and task, and whether all of these jobs were looked at.

    Reads every READY row once, without locks; with `most` about so many, of each queue those that are claimed first.
    Import the tasks first: registry.discover().
    """
    if most is None:
        counted, complete = _count_all(using), True
    else:
        counted, complete = _count_some(using, most)
    found = []
    for (queue, task, version), (jobs, first_id) in counted.items():
        if task is None:
            found.append(_of_rows(queue, jobs, first_id))
        else:
            found.append(_of_task(queue, task, version, jobs, first_id))
    kinds = [kind for kind in found if kind is not None]
    return sorted(kinds, key=lambda kind: (kind.queue, kind.task or "", kind.payload_version)), complete


def _ready(using: str) -> QuerySet[Job]:
    """With the version of each payload that has one; those of raw rows mean nothing."""
    version = Case(When(task__isnull=False, then=KeyTextTransform("version", "payload")), output_field=TextField())
    rows: QuerySet[Job] = Job.objects.using(using).filter(status=Job.Status.READY).annotate(payload_version=version)
    return rows


def _count_all(using: str) -> dict[_Kind, tuple[int, int]]:
    rows = _ready(using).order_by().values_list(*_KIND).annotate(jobs=Count("pk"), first_id=Min("pk"))
    return {(queue, task, version): (jobs, first_id) for queue, task, version, jobs, first_id in rows}


def _count_some(using: str, most: int) -> tuple[dict[_Kind, tuple[int, int]], bool]:
    queues = queue_names(using=using)
    each = max(1, most // max(1, len(queues)))
    found: dict[_Kind, tuple[int, int]] = {}
    complete = True
    for queue in queues:
        rows = vendor(using).walk_by(_ready(using).filter(queue=queue), "ix_pick").order_by(*_CLAIMED)
        read = list(rows.values_list(*_KIND, "pk")[: each + 1])
        complete = complete and len(read) <= each
        for name, task, version, job_id in read[:each]:
            jobs, first_id = found.get((name, task, version), (0, job_id))
            found[name, task, version] = jobs + 1, min(first_id, job_id)
    return found, complete


def _of_rows(queue: str, jobs: int, first_id: int) -> Unrunnable | None:
    if registry.find_handler(queue) is not None:
        return None
    return Unrunnable(queue, None, 1, jobs, first_id, "no @handler for this queue")


def _of_task(queue: str, task: str, payload_version: object, jobs: int, first_id: int) -> Unrunnable | None:
    # Anything but a version number fails the job when it runs, so it is not reported here.
    text = "1" if payload_version is None else str(payload_version)
    version = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1
    known = registry.find_task(task)
    if known is None:
        why = "no such task"
    elif (stuck := missing_version(known, version)) is None:
        return None
    elif stuck == version and version > version_of(known):
        why = f"the task takes up to version {version_of(known)}"
    else:
        why = f"no upcaster from version {stuck}"
    return Unrunnable(queue, task, version, jobs, first_id, why)
