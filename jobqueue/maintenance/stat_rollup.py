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
from operator import itemgetter
from typing import Any, TypeAlias

from django.db import connections
from django.db.models import QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.models import JobStat, QueueStat
from jobqueue.models.stat import EPOCH, CountedEnds
from jobqueue.stats.ends import Ends

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
        stats.filter(pk__in=[row.pk for row in found]).delete()
        written = _add(stats, found, span=rule.target, begins_at=begins_at, counted_at=begins_at)
        if model is JobStat and rule.source == JobStat.Span.PROCESS:
            _add(stats, found, span=JobStat.Span.TOTAL, begins_at=EPOCH, counted_at=now)
    return Counter(statistics_added_up=len(found), statistics_written=written)


def _add(
    stats: QuerySet[JobStat | QueueStat], rows: Sequence[JobStat | QueueStat], *, counted_at: datetime, **time: Any
) -> int:
    """Add `rows` to those of their names that begin at this time, and return the number of rows that were written.

    In the transaction of the caller, which deletes `rows`. A row that another roll-up has locked is left alone, and a
    second one is written beside it: so nobody waits, and no two roll-ups deadlock.
    """
    columns = TABLES[stats.model]
    sums = sums_by_name(rows, columns)
    names = {f"{column}__in": {getattr(row, column) for row in rows} for column in columns}
    there = vendor(stats.db).lock_rows(stats.filter(**time, **names).order_by(*columns, "id"))
    earlier = [row for row in there if name_of(row, columns) in sums]
    for name, ends in sums_by_name(earlier, columns).items():
        sums[name].add(ends)
    stats.filter(pk__in=[row.pk for row in earlier]).delete()
    times = time | {"counted_at": counted_at}
    new = [
        stats.model(id=os.urandom(16), **times, **dict(zip(columns, name, strict=True)), **ends.columns())
        for name, ends in sorted(sums.items(), key=itemgetter(0))
    ]
    stats.bulk_create(new, batch_size=BATCH)
    return len(new)


def name_of(row: CountedEnds, columns: Sequence[str]) -> Name:
    """The values of these columns."""
    return tuple(getattr(row, column) for column in columns)


def sums_by_name(rows: Iterable[CountedEnds], columns: Sequence[str]) -> dict[Name, Ends]:
    """The sums of `rows` by the values of these columns."""
    sums: dict[Name, Ends] = {}
    for row in rows:
        sums.setdefault(name_of(row, columns), Ends()).add(Ends.of(row))
    return sums
