"""What jobs at the gates of limits, pauses and breakers wait for, and how many wait for each of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jobqueue.db import vendor
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.explain.ready_jobs import first_due_of_level
from jobqueue.explain.survey import COUNT_LEAST, COUNT_MAX, ENTRIES_MAX, Spot
from jobqueue.models import GateWait

#: the first jobs of a queue and priority whose wait_reasons are read, the priorities that are looked at, and the
#: subjects that are counted: those with the most jobs among the ones read
SAMPLE_MAX, LEVELS_MAX, SUBJECTS_MAX = 200, 50, 20


@dataclass(slots=True)
class Waiters:
    """Jobs that wait for the same subject: how many, and the first one of them that was read."""

    first: int
    queues: set[str]
    jobs: int
    capped: bool = False


def waiters(spots: Sequence[Spot], using: str) -> list[Waiters]:
    """The due jobs of spots at the gate of limits, by what they wait for. At most three statements.

    The number is that of all jobs that wait for the subject, whatever their queue. One that the table of waiting jobs
    does not have is counted among those that were read.
    """
    levels = [level._asdict() for spot in spots for level in spot.due_levels][:LEVELS_MAX]
    read: dict[tuple[str, str | None], Waiters] = {}
    for job_id, queue, _, _, wait_reason in first_due_of_level(using, SAMPLE_MAX).seek_each(levels):
        read.setdefault((queue, wait_reason), Waiters(job_id, {queue}, 0)).jobs += 1
    most = sorted(read.values(), key=lambda one: -one.jobs)[:SUBJECTS_MAX]
    rows = GateWait.objects.using(using).filter(pk__in=[one.first for one in most])
    subjects = dict(rows.values_list("pk", "subject")) if most else {}
    found: dict[int, Waiters] = {}
    for one in most:
        # A job without a subject counts under its negative id: ids of subjects are above 0.
        kept = found.setdefault(subjects.get(one.first, -one.first), one)
        kept.queues |= one.queues
    _count([*subjects.values()], found, using)
    return [*found.values()]


def _count(subjects: Sequence[int], found: dict[int, Waiters], using: str) -> None:
    if not subjects:
        return
    most = min(COUNT_MAX, max(COUNT_LEAST, ENTRIES_MAX // len(subjects)))
    for subject in {*subjects}:
        found[subject].jobs = 0
    for (subject,) in _waiting(using, most).seek_each([{"subject": subject} for subject in {*subjects}]):
        found[subject].jobs += 1
    for subject in {*subjects}:
        found[subject].capped = found[subject].jobs >= most


@lru_cache(maxsize=64)
def _waiting(using: str, most: int) -> Prepared:
    rows = GateWait.objects.using(using).filter(subject=Slot("subject", GateWait._meta.get_field("subject")))
    # In the order of the index; else PostgreSQL may read the table.
    rows = rows.order_by("urgency", "run_at", "job_id")
    return prepare_rows(vendor(using).force_index(rows, "ix_gate_wait").values_list("subject")[:most])
