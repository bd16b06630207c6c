"""Keeps the totals of ended jobs, which counters of Prometheus need: they must not fall when old rows are deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeAlias

from jobqueue.db import vendor
from jobqueue.models import JobStat, JobStatTotal
from jobqueue.models.stat import CountedEnds
from jobqueue.stats.counts import Counts, Kind

#: a queue, or a task in a queue
Name: TypeAlias = tuple[str, ...]


def add_to_totals(rows: Sequence[JobStat], now: datetime, *, using: str) -> None:
    """Add `rows` to the totals of their kinds, in the transaction of the caller, which deletes `rows`.

    A row of a total that another roll-up has locked is left alone, and a second one is written beside it: so nobody
    waits, and no two roll-ups deadlock. `now` is by the clock of the database.
    """
    server, totals = vendor(using), JobStatTotal.objects.using(using)
    sums = sums_by_name(rows, Kind._fields)
    there = totals.filter(queue__in={row.queue for row in rows}, task__in={row.task for row in rows})
    earlier = [row for row in server.lock_rows(there.order_by("queue", "task")) if (row.queue, row.task) in sums]
    for kind, counts in sums_by_name(earlier, Kind._fields).items():
        sums[kind].add(counts)
    totals.filter(pk__in=[row.pk for row in earlier]).delete()
    totals.bulk_create(
        [
            JobStatTotal(id=os.urandom(16), queue=queue, task=task, counted_at=now, **counts.columns())
            for (queue, task), counts in sorted(sums.items())
        ],
        batch_size=500,
    )


def name_of(row: CountedEnds, columns: Sequence[str]) -> Name:
    """The values of these columns."""
    return tuple(getattr(row, column) for column in columns)


def sums_by_name(rows: Iterable[CountedEnds], columns: Sequence[str]) -> dict[Name, Counts]:
    """The sums of `rows` by the values of these columns."""
    sums: dict[Name, Counts] = {}
    for row in rows:
        sums.setdefault(name_of(row, columns), Counts()).add(Counts.of(row))
    return sums
