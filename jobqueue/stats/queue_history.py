"""What ended in each part of a span of time, and the same by queue, from one reading of the rows of statistics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count

from jobqueue.db.stat_expressions import PartNumber, raw_rows
from jobqueue.db.time_limit import time_limit
from jobqueue.stats import history
from jobqueue.stats.ends import SUMS, Ends
from jobqueue.stats.history import AGGREGATES, READ_SECONDS, Part, empty_parts, histograms, rows_of

_DONE, _DEAD = SUMS.index("done"), SUMS.index("dead")


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """What ended in one queue in the `whole` time; and the jobs that `ended` DONE or FAILED in each part of it."""

    whole: Ends
    ended: list[int]


def read_histories(
    now: datetime, length: timedelta, part: timedelta, *, using: str
) -> tuple[list[Part], dict[str, QueueHistory]]:
    """read_history() of all jobs, and by name what ended in each queue where something did.

    Two statements at most. Of too many rows, histograms are known of no part and of no queue. Raises StatementTimeout.
    """
    parts, queues = empty_parts(now, length, part), dict[str, QueueHistory]()
    first, rows, count = min(parts), rows_of(parts, now, using, None, None), 0
    with time_limit(READ_SECONDS, using=using) as limit:
        limit.check()
        groups = rows.values("queue", part=PartNumber("begins_at", part)).annotate(rows=Count("pk"), **AGGREGATES)
        for queue, place, number, *values in raw_rows(groups.values_list("queue", "part", "rows", *AGGREGATES)):
            if queue not in queues:
                queues[queue] = QueueHistory(Ends(), [0] * len(parts))
            own = queues[queue]
            own.ended[place - first] += int(values[_DONE]) + int(values[_DEAD])
            own.whole.add_sums(values)
            parts[place].add_sums(values)
            count += int(number)
        limit.check()
        wholes: list[Ends] = [*parts.values(), *(own.whole for own in queues.values())]
        if count > history.ROWS_MAX:
            for one in wholes:
                one.waits = one.run_times = None
            return [*parts.values()], queues
        found = histograms(rows, part, history.ROWS_MAX + 1, "queue") if count else ()
        for number, waits, run_times, place, queue in found:
            parts[place].add_times(waits, run_times, number)
            # Rows may have come since the sums were read.
            if queue in queues:
                queues[queue].whole.add_times(waits, run_times, number)
    return [*parts.values()], queues
