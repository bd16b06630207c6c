"""The first READY job of each gate of a queue: index seeks, whose number depends on the priorities in use alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from jobqueue.explain.ready_jobs import ALL_GATES, LEVELS_MAX, first_of_level
from jobqueue.gates.levels import levels_below, top_levels
from jobqueue.models import Job


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
