"""Adds the rows of statistics up: those of processes to minutes, minutes to hours, hours to days.

Rows of processes by task are also added to the totals, in the same transaction: each end is in a total exactly once.
Counters of Prometheus need the totals, because they must not fall when old rows are deleted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias

from django.db import connections
from django.db.models import QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.models import JobStat, JobStatTotal, QueueStat
from jobqueue.models.stat import CountedEnds
from jobqueue.stats.counts import Counts, Kind

#: rows of one transaction
BATCH = 500
#: while there is more, the next step of a worker follows after this pause
PAUSE_SECONDS = 0.2
#: a queue, or a task in a queue
Name: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows of one span become rows of another when they are old enough."""

    source: JobStat.Span
    target: JobStat.Span
    seconds: int  # of the target
    age: timedelta  # after the end of the target span


RULES = (
    # The writer of a row repeats a write for four minutes (recorder.REPEAT_SECONDS), and then never again.
    Rule(JobStat.Span.PROCESS, JobStat.Span.MINUTE, 60, timedelta(minutes=5)),
    Rule(JobStat.Span.MINUTE, JobStat.Span.HOUR, 3600, timedelta(hours=3)),
    Rule(JobStat.Span.HOUR, JobStat.Span.DAY, 86_400, timedelta(days=8)),
)


#: the tables, and the columns whose values have rows of their own
TABLES: dict[type[JobStat | QueueStat], tuple[str, ...]] = {JobStat: ("queue", "task"), QueueStat: ("queue",)}


class StatRollup:
    """One step per call. Any number of workers may do this at once: each takes rows that no other has locked."""

    more = False  # whether the last step has found rows, so that the next one follows soon

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Add up to BATCH rows of the oldest span of time to the rows of the next longer one.

        Counts the rows that it read as `statistics_added_up`, and those that it wrote as `statistics_written`.
        """
        done = roll_up_some(using=using)
        self.more = done.total() > 0
        return done


def roll_up_some(*, using: str) -> Counter[str]:
    """One step: one transaction, by the first table and rule that find rows."""
    now = read_now(using)
    for model in TABLES:
        for rule in RULES:
            until = _begin(now - rule.age, rule)
            rows = model._default_manager.using(using).filter(span=rule.source, begins_at__lt=until)
            # The usual case: no transaction.
            oldest = rows.order_by("begins_at").values_list("begins_at", flat=True).first()
            if oldest is not None:
                merge = partial(_merge, model, rule, _begin(oldest, rule), now, using)
                done = retry_transient("housekeeping", merge, using=using)
                if done:
                    return done
    return Counter()


def _begin(instant: datetime, rule: Rule) -> datetime:
    """The beginning of the target span that contains `instant`, in UTC."""
    seconds = int(instant.timestamp())
    return datetime.fromtimestamp(seconds - seconds % rule.seconds, tz=instant.tzinfo)


def _merge(
    model: type[JobStat | QueueStat], rule: Rule, begins_at: datetime, now: datetime, using: str
) -> Counter[str]:
    """Replace rows of `source` in one target span, and those of `target` that they belong to, by their sums.

    In the order of their names, so that rows of one name come together however many names there are.
    """
    server, columns = vendor(using), TABLES[model]
    stats: QuerySet[JobStat | QueueStat] = model._default_manager.using(using)
    end = begins_at + timedelta(seconds=rule.seconds)
    with server.transaction(connections[using]):
        rows = stats.filter(span=rule.source, begins_at__gte=begins_at, begins_at__lt=end)
        found = list(server.lock_rows(rows.order_by(*columns, "id"))[:BATCH])
        if not found:
            return Counter()
        names = {name_of(row, columns) for row in found}
        there = stats.filter(span=rule.target, begins_at=begins_at, queue__in={row.queue for row in found})
        earlier = [row for row in server.lock_rows(there.order_by("id")) if name_of(row, columns) in names]
        sums = sums_by_name([*earlier, *found], columns)
        stats.filter(pk__in=[row.pk for row in (*earlier, *found)]).delete()
        new = [_row(model, rule.target, begins_at, name, counts) for name, counts in sorted(sums.items())]
        stats.bulk_create(new, batch_size=BATCH)
        of_tasks = [row for row in found if isinstance(row, JobStat)]
        if of_tasks and rule.source == JobStat.Span.PROCESS:
            add_to_totals(of_tasks, now, using=using)
    return Counter(statistics_added_up=len(found), statistics_written=len(new))


def _row(
    model: type[JobStat | QueueStat], span: JobStat.Span, begins_at: datetime, name: Name, counts: Counts
) -> JobStat | QueueStat:
    names = dict(zip(TABLES[model], name, strict=True))
    return model(id=os.urandom(16), span=span, begins_at=begins_at, **names, **counts.columns())


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
