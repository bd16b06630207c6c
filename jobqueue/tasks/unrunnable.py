"""Waiting jobs that the code of this process could not run. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Min
from django.db.models.fields.json import KeyTextTransform

from jobqueue.models import Job
from jobqueue.tasks import registry
from jobqueue.tasks.versions import missing_version, version_of


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """Waiting jobs of one kind, and why a worker with this code would park them."""

    queue: str
    task: str | None  # None: raw rows
    payload_version: int
    jobs: int
    first_id: int
    why: str


def find_unrunnable(*, using: str) -> list[Unrunnable]:
    """All kinds among the READY jobs, by queue and task. Reads every READY row once, without locks.

    Import the tasks first: registry.discover().
    """
    ready = Job.objects.using(using).filter(status=Job.Status.READY).order_by()
    counted: dict[str, Any] = {"jobs": Count("pk"), "first_id": Min("pk")}
    raw = ready.filter(task__isnull=True).values("queue").annotate(**counted)
    tasks = ready.filter(task__isnull=False).annotate(payload_version=KeyTextTransform("version", "payload"))
    found = [_of_rows(**row) for row in raw]
    found += [_of_task(**row) for row in tasks.values("queue", "task", "payload_version").annotate(**counted)]
    kinds = [kind for kind in found if kind is not None]
    return sorted(kinds, key=lambda kind: (kind.queue, kind.task or "", kind.payload_version))


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
