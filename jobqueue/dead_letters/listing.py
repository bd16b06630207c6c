"""The FAILED jobs of the queue in groups of the same fingerprint, and what a redrive of them would move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Max, Min

from jobqueue.db.alias import alias_of
from jobqueue.db.time_limit import time_limit
from jobqueue.dead_letters.noting import Note, notes_on
from jobqueue.exceptions import StatementTimeout
from jobqueue.models import JobAttempt
from jobqueue.models.job import JobQuerySet
from jobqueue.runs.job_filter import DeadFilter, check_dead_filter, dead_rows, in_order

_SAMPLES = 500  # of one statement
#: of the count, for a page that somebody waits for
COUNT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """FAILED jobs whose last failure was of the same kind. Instants are aware; seen means the end of a job."""

    fingerprint: str | None  # None: plain SQL wrote these failures
    cause: str | None
    task: str | None  # None: jobs of handlers
    error_class: str  # "" if no exception is recorded
    count: int
    first_seen: datetime | None
    last_seen: datetime | None
    sample_job_id: int  # the newest job of the group
    note: str = ""  # what people wrote about it: note()
    note_by: str = ""
    note_updated_at: datetime | None = None


def fingerprints(
    *, queue: str | None = None, task: str | None = None, cause: str | None = None, using: str | None = None
) -> list[DeadLetters]:
    """The dead letters by fingerprint, the largest group first; all of them, or those of a queue, a task or a cause.

    Reads the FAILED jobs and no others. Raises InvalidValue or InvalidType for a queue or a cause that cannot be.
    """
    alias = alias_of(using)
    return groups_of(dead_rows(alias, check_dead_filter(queue=queue, task=task, cause=cause)), alias)


def newest_rows(using: str, wanted: Mapping[str, Any], most: int) -> tuple[JobQuerySet, bool]:
    """Those dead letters that match among the `most` newest ones, and whether there are older ones."""
    rows = dead_rows(using, wanted)
    part = in_order(using).reverse().values("pk")[:most].aggregate(number=Count("pk"), lowest=Min("pk"))
    return (rows, False) if part["number"] < most else (rows.filter(pk__gte=part["lowest"]), True)


def groups_of(rows: JobQuerySet, using: str, *, most: int | None = None) -> list[DeadLetters]:
    """These dead letters by fingerprint, the largest group first; all groups, or the `most` largest."""
    groups = list(
        rows.values("fingerprint", "cause", "task")
        .annotate(count=Count("pk"), first=Min("finished_at"), last=Max("finished_at"), sample=Max("pk"))
        .order_by("-count", "-last", "-sample")[:most]
    )
    classes = _error_classes([group["sample"] for group in groups], using)
    written = notes_on((group["fingerprint"] for group in groups), using=using)
    return [_shown(group, classes, written.get(group["fingerprint"])) for group in groups]


def _shown(group: dict[str, Any], classes: dict[tuple[int, str | None], str], note: Note | None) -> DeadLetters:
    return DeadLetters(
        fingerprint=group["fingerprint"],
        cause=group["cause"],
        task=group["task"],
        error_class=classes.get((group["sample"], group["fingerprint"]), ""),
        count=group["count"],
        first_seen=group["first"],
        last_seen=group["last"],
        sample_job_id=group["sample"],
        note=note.text if note else "",
        note_by=note.by if note else "",
        note_updated_at=note.updated_at if note else None,
    )


def _error_classes(samples: list[int], using: str) -> dict[tuple[int, str | None], str]:
    """The class of the newest attempt of each of these jobs, by job id and fingerprint."""
    found: dict[tuple[int, str | None], str] = {}
    for begin in range(0, len(samples), _SAMPLES):
        attempts = JobAttempt.objects.using(using).filter(job_id__in=samples[begin : begin + _SAMPLES])
        for job_id, kind, name in attempts.order_by("id").values_list("job_id", "fingerprint", "error_class"):
            found[job_id, kind] = name
    return found


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dead letter that a redrive would retry."""

    job_id: int
    queue: str
    task: str | None  # None: a job of a handler
    failed_at: datetime | None  # None: plain SQL wrote the failure


@dataclass(frozen=True, slots=True)
class Preview:
    """The dead letters that match a filter. `groups`: the largest first; `first`: the next jobs, in order."""

    matched: int | None  # None: counting took too long
    groups: list[DeadLetters]
    are_older: bool  # whether the groups leave out older ones
    first: list[Candidate]


def preview(wanted: DeadFilter, *, first: int, grouped: int, using: str) -> Preview:
    """Read what matches `wanted`, its groups among the `grouped` newest dead letters, and the `first` of its jobs.

    Writes nothing.
    """
    rows = dead_rows(using, wanted)
    # Ids are few.
    newest, are_older = (rows, False) if "job_ids" in wanted else newest_rows(using, wanted, grouped)
    groups = groups_of(newest, using)
    # In the order of ix_lease, as a redrive takes them.
    oldest = rows.order_by("lock_until", "pk").values_list("pk", "queue", "task", "finished_at")
    return Preview(_counted(wanted, using), groups, are_older, [Candidate(*row) for row in oldest[:first]])


def _counted(wanted: DeadFilter, using: str) -> int | None:
    try:
        with time_limit(COUNT_SECONDS, using=using):
            return dead_rows(using, wanted).count()
    except StatementTimeout:
        return None
