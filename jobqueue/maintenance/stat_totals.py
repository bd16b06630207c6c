"""Keeps the totals of ended jobs, which counters of Prometheus need: they must not fall when old rows are deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime

from jobqueue.db import vendor
from jobqueue.models import JobStat, JobStatTotal
from jobqueue.models.stat import CountedEnds
from jobqueue.stats.counts import Counts, Kind


def add_to_totals(rows: Sequence[JobStat], now: datetime, *, using: str) -> None:
    """Add `rows` to the totals of their kinds, in the transaction of the caller, which deletes `rows`.

    A row of a total that another roll-up has locked is left alone, and a second one is written beside it: so nobody
    waits, and no two roll-ups deadlock. `now` is by the clock of the database.
    """
    server, totals = vendor(using), JobStatTotal.objects.using(using)
    sums = sums_by_kind(rows)
    there = totals.filter(queue__in={kind.queue for kind in sums}, task__in={kind.task for kind in sums})
    earlier = [row for row in server.lock_rows(there.order_by("queue", "task")) if Kind(row.queue, row.task) in sums]
    for kind, counts in sums_by_kind(earlier).items():
        sums[kind].add(counts)
    totals.filter(pk__in=[row.pk for row in earlier]).delete()
    totals.bulk_create(
        [
            JobStatTotal(id=os.urandom(16), queue=kind.queue, task=kind.task, counted_at=now, **counts.columns())
            for kind, counts in sorted(sums.items())
        ],
        batch_size=500,
    )


def sums_by_kind(rows: Iterable[CountedEnds]) -> dict[Kind, Counts]:
    """The sums of `rows` by queue and task."""
    sums: dict[Kind, Counts] = {}
    for row in rows:
        sums.setdefault(Kind(row.queue, row.task), Counts()).add(Counts.of(row))
    return sums
