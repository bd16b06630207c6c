"""Adds the rows of statistics up: those of processes to minutes, minutes to hours, hours to days.

Rows of processes by task are also added to the totals, in the same transaction: each end is in a total exactly once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import connections
from django.db.models import QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.maintenance.stat_totals import Name, add_to_totals, name_of, sums_by_name
from jobqueue.models import JobStat, QueueStat
from jobqueue.stats.counts import Counts

#: rows of one transaction
BATCH = 500
#: between two looks of a worker; while there is more, the next step follows after a pause
INTERVAL_SECONDS, PAUSE_SECONDS = 60.0, 0.2
#: steps of a pass that is not repeated soon
STEPS_MAX = 200


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


@dataclass(frozen=True, slots=True)
class RolledUp:
    """What one pass did."""

    rows_read: int = 0
    rows_written: int = 0

    def __add__(self, other: RolledUp) -> RolledUp:
        return RolledUp(self.rows_read + other.rows_read, self.rows_written + other.rows_written)


class StatRollup:
    """One step per call. Any number of workers may do this at once: each takes rows that no other has locked."""

    more = False  # whether the last step has found rows, so that the next one follows soon

    def run_once(self, settings: Settings, *, using: str) -> RolledUp:
        """Add up to BATCH rows of the oldest span of time to the rows of the next longer one."""
        done = roll_up_some(using=using)
        self.more = done.rows_read > 0
        return done


def roll_up(*, using: str) -> RolledUp:
    """Add up what is old enough, in STEPS_MAX steps at most: for a command that looks now and then."""
    done = RolledUp()
    for _ in range(STEPS_MAX):
        step = roll_up_some(using=using)
        if not step.rows_read:
            break
        done += step
    return done


def roll_up_some(*, using: str) -> RolledUp:
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
                if done.rows_read:
                    return done
    return RolledUp()


def _begin(instant: datetime, rule: Rule) -> datetime:
    """The beginning of the target span that contains `instant`, in UTC."""
    seconds = int(instant.timestamp())
    return datetime.fromtimestamp(seconds - seconds % rule.seconds, tz=instant.tzinfo)


def _merge(model: type[JobStat | QueueStat], rule: Rule, begins_at: datetime, now: datetime, using: str) -> RolledUp:
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
            return RolledUp()
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
    return RolledUp(len(found), len(new))


def _row(
    model: type[JobStat | QueueStat], span: JobStat.Span, begins_at: datetime, name: Name, counts: Counts
) -> JobStat | QueueStat:
    names = dict(zip(TABLES[model], name, strict=True))
    return model(id=os.urandom(16), span=span, begins_at=begins_at, **names, **counts.columns())
