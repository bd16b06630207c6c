"""What ended in each queue lately, from the rows of statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, Sum

from jobqueue.db.stat_expressions import Addend
from jobqueue.models import QueueStat

#: throughput and error rate are those of the last minutes, the present one included
RATE_MINUTES = 5
DEAD_MINUTES = 60
#: rows that are not older than an hour
_FINE = (QueueStat.Span.PROCESS, QueueStat.Span.MINUTE)


@dataclass(frozen=True, slots=True)
class Recent:
    """What ended in one queue."""

    throughput_per_minute: float = 0.0  # jobs that ended DONE or FAILED
    dead_per_hour: int = 0  # jobs that ended FAILED in the last hour
    runs: int = 0  # that ended in the last minutes
    error_rate: float = 0.0  # share of the runs that failed or were lost; 0 if none ended


def read_recent(now: datetime, using: str, queues: Sequence[str] | None = None) -> dict[str, Recent]:
    """By queue, of all or of `queues`; queues where nothing ended are not in it. One statement.

    `now`: by the clock of the database, as `begins_at` of the rows is.
    """
    minute = now.replace(second=0, microsecond=0)
    since, hour = minute - timedelta(minutes=RATE_MINUTES - 1), minute - timedelta(minutes=DEAD_MINUTES - 1)
    rows = QueueStat.objects.using(using).filter(span__in=_FINE, begins_at__gte=hour, begins_at__lte=now)
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    lately = Q(begins_at__gte=since)
    sums = rows.values("queue").annotate(
        done_lately=Sum(Addend("done"), filter=lately, default=0),
        retried_lately=Sum(Addend("retried"), filter=lately, default=0),
        dead_lately=Sum(Addend("dead"), filter=lately, default=0),
        dead_in_hour=Sum(Addend("dead")),
    )
    minutes = (now - since) / timedelta(minutes=1)
    found = sums.order_by().values_list("queue", "done_lately", "retried_lately", "dead_lately", "dead_in_hour")
    return {queue: _recent(list(map(int, counts)), minutes) for queue, *counts in found}


def _recent(sums: Sequence[int], minutes: float) -> Recent:
    done, retried, dead, dead_in_hour = sums
    runs = done + retried + dead
    return Recent((done + dead) / minutes, dead_in_hour, runs, (retried + dead) / runs if runs else 0.0)
