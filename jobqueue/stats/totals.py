"""How jobs have ended since the statistics began, by queue and task, in numbers that never fall."""

from __future__ import annotations

from jobqueue.models import JobStat, JobStatTotal
from jobqueue.stats.counts import COLUMNS, Counts, Kind

#: rows of one read: the totals, and what processes have written in the last minutes
ROWS_MAX = 50_000


def read_totals(using: str) -> dict[Kind, Counts] | None:
    """The counts of each task in each queue, from the beginning; None if there are more than ROWS_MAX rows to add up.

    One statement, so that it sees a row of a process or the total that contains it, and never both or neither. What is
    read does not grow with the age of the statistics: the roll-up moves rows of processes into the totals after five
    minutes.
    """
    names = ("queue", "task", *COLUMNS)
    totals = JobStatTotal.objects.using(using).values_list(*names)
    lately = JobStat.objects.using(using).filter(span=JobStat.Span.PROCESS).values_list(*names)
    found = list(totals.union(lately, all=True)[: ROWS_MAX + 1])
    if len(found) > ROWS_MAX:
        return None
    sums: dict[Kind, Counts] = {}
    for queue, task, *values in found:
        row = JobStatTotal(queue=queue, task=task, **dict(zip(COLUMNS, values, strict=True)))
        sums.setdefault(Kind(queue, task), Counts()).add(Counts.of(row))
    return sums
