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
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.models import JobStat
from jobqueue.models.stat import EPOCH
from jobqueue.stats.ends import Ends, Kind

#: rows of one transaction
BATCH = 500
#: while there is more, the next step of a worker follows after this pause
PAUSE_SECONDS = 0.2
Span = JobStat.Span


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows of one span become rows of another when they are old enough."""

    source: Span
    target: Span
    seconds: int  # of the target
    age: timedelta  # after the end of the target span


RULES = (
    # The writer of a row repeats a write for four minutes (recorder.REPEAT_SECONDS), and then never again.
    Rule(Span.PROCESS, Span.MINUTE, 60, timedelta(minutes=5)),
    Rule(Span.MINUTE, Span.HOUR, 3600, timedelta(hours=3)),
    Rule(Span.HOUR, Span.DAY, 86_400, timedelta(days=8)),
    Rule(Span.QUEUE_PROCESS, Span.QUEUE_MINUTE, 60, timedelta(minutes=5)),
    Rule(Span.QUEUE_MINUTE, Span.QUEUE_HOUR, 3600, timedelta(hours=3)),
    Rule(Span.QUEUE_HOUR, Span.QUEUE_DAY, 86_400, timedelta(days=8)),
)


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
    """One step: one transaction, by the first rule that finds rows."""
    now = read_now(using)
    for rule in RULES:
        until = _begin(now - rule.age, rule)
        rows = JobStat.objects.using(using).filter(span=rule.source, begins_at__lt=until)
        # The usual case: no transaction.
        oldest = rows.order_by("begins_at").values_list("begins_at", flat=True).first()
        if oldest is not None:
            merge = partial(_merge, rule, _begin(oldest, rule), now, using)
            done = retry_transient("housekeeping", merge, using=using)
            if done:
                return done
    return Counter()


def _begin(instant: datetime, rule: Rule) -> datetime:
    """The beginning of the target span that contains `instant`, in UTC."""
    seconds = int(instant.timestamp())
    return datetime.fromtimestamp(seconds - seconds % rule.seconds, tz=instant.tzinfo)


def _merge(rule: Rule, begins_at: datetime, now: datetime, using: str) -> Counter[str]:
    """Replace rows of `source` in one target span, and those of `target` that they belong to, by their sums.

    In the order of their names, so that rows of one name come together however many names there are.
    """
    stats: QuerySet[JobStat] = JobStat.objects.using(using)
    end = begins_at + timedelta(seconds=rule.seconds)
    with vendor(using).transaction(connections[using]):
        rows = stats.filter(span=rule.source, begins_at__gte=begins_at, begins_at__lt=end)
        found = list(vendor(using).lock_rows(rows.order_by("queue", "task", "id"), BATCH))
        if not found:
            return Counter()
        stats.filter(pk__in=[row.pk for row in found]).delete()
        written = _add(stats, found, span=rule.target, begins_at=begins_at, counted_at=begins_at)
        if rule.source == Span.PROCESS:
            _add(stats, found, span=Span.TOTAL, begins_at=EPOCH, counted_at=now)
    return Counter(statistics_added_up=len(found), statistics_written=written)


def _add(stats: QuerySet[JobStat], rows: Sequence[JobStat], *, counted_at: datetime, **time: Any) -> int:
    """Add `rows` to those of their names that begin at this time, and return the number of rows that were written.

    In the transaction of the caller, which deletes `rows`. A row that another roll-up has locked is left alone, and a
    second one is written beside it: so nobody waits, and no two roll-ups deadlock.
    """
    sums = sums_by_kind(rows)
    names = {f"{column}__in": {getattr(row, column) for row in rows} for column in Kind._fields}
    there = vendor(stats.db).lock_rows(stats.filter(**time, **names).order_by("queue", "task", "id"))
    earlier = [row for row in there if Kind(row.queue, row.task) in sums]
    for kind, ends in sums_by_kind(earlier).items():
        sums[kind].add(ends)
    stats.filter(pk__in=[row.pk for row in earlier]).delete()
    new = [
        JobStat(id=os.urandom(16), counted_at=counted_at, **time, **kind._asdict(), **ends.columns())
        for kind, ends in sorted(sums.items(), key=itemgetter(0))
    ]
    stats.bulk_create(new, batch_size=BATCH)
    return len(new)


def sums_by_kind(rows: Iterable[JobStat]) -> dict[Kind, Ends]:
    """The sums of `rows` by queue and task."""
    sums: dict[Kind, Ends] = {}
    for row in rows:
        sums.setdefault(Kind(row.queue, row.task), Ends()).add(Ends.of(row))
    return sums
