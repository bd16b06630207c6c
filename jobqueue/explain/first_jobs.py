"""The first READY job of each gate of a queue: index seeks, whose number depends on the priorities in use alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from jobqueue.explain.ready_jobs import ALL_GATES, LEVELS_MAX, first_of_level, level_below, top_level


@dataclass(slots=True)
class FirstJobs:
    """By gate the id of the first due job, or if none is due of the one that is due first; and whether it is due."""

    due: dict[int, int] = field(default_factory=dict)
    later: dict[int, int] = field(default_factory=dict)
    cut: bool = False  # there are more priorities than were looked at


def first_jobs(queue: str, now: datetime, using: str) -> FirstJobs:
    """The first READY jobs of `queue`. Two statements for each priority above and with the first due job.

    Of LEVELS_MAX priorities at most; one more if no job is due.
    """
    answer, earliest = FirstJobs(), dict[int, datetime]()
    found = top_level(using).rows_of_each([{"queue": queue, "gate": gate} for gate in ALL_GATES])
    for _ in range(LEVELS_MAX):
        levels = [{"queue": queue, "gate": gate, "level": level} for _, gate, level in found]
        for _, gate, _, run_at, job_id in first_of_level(using).rows_of_each(levels):
            if run_at <= now:
                answer.due[gate] = job_id
            elif gate not in earliest or run_at < earliest[gate]:
                earliest[gate], answer.later[gate] = run_at, job_id
        levels = [level for level in levels if level["gate"] not in answer.due]
        found = level_below(using).rows_of_each(levels)
        if not found:
            break
    answer.cut = bool(found)
    return answer
