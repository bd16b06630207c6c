"""Adds the rows of statistics up: those of processes to minutes, minutes to hours, hours to days."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import connections

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.models import JobStat
from jobqueue.stats.counts import Counts, Kind

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
    """One step: one transaction, by the first rule that finds rows."""
    now = read_now(using)
    for rule in RULES:
        until = _begin(now - rule.age, rule)
        rows = JobStat.objects.using(using).filter(span=rule.source, begins_at__lt=until)
        # The usual case: no transaction.
        oldest = rows.order_by("begins_at").values_list("begins_at", flat=True).first()
        if oldest is not None:
            begins_at = _begin(oldest, rule)
            done = retry_transient("housekeeping", partial(_merge, rule, begins_at, using), using=using)
            if done.rows_read:
                return done
    return RolledUp()


def _begin(instant: datetime, rule: Rule) -> datetime:
    """The beginning of the target span that contains `instant`, in UTC."""
    seconds = int(instant.timestamp())
    return datetime.fromtimestamp(seconds - seconds % rule.seconds, tz=instant.tzinfo)


def _merge(rule: Rule, begins_at: datetime, using: str) -> RolledUp:
    """Replace rows of `source` in one target span, and those of `target` that they belong to, by their sums.

    In the order of queue and task, so that the rows of one kind come together however many kinds there are.
    """
    server, stats = vendor(using), JobStat.objects.using(using)
    end = begins_at + timedelta(seconds=rule.seconds)
    with server.transaction(connections[using]):
        rows = stats.filter(span=rule.source, begins_at__gte=begins_at, begins_at__lt=end)
        found = list(server.lock_rows(rows.order_by("queue", "task", "id"))[:BATCH])
        if not found:
            return RolledUp()
        kinds = {Kind(row.queue, row.task) for row in found}
        there = stats.filter(span=rule.target, begins_at=begins_at, queue__in={kind.queue for kind in kinds})
        earlier = [row for row in server.lock_rows(there.order_by("id")) if Kind(row.queue, row.task) in kinds]
        sums = _sums([*earlier, *found])
        stats.filter(pk__in=[row.pk for row in (*earlier, *found)]).delete()
        new = [_row(rule.target, begins_at, kind, counts) for kind, counts in sorted(sums.items())]
        stats.bulk_create(new, batch_size=BATCH)
    return RolledUp(len(found), len(new))


def _sums(rows: Iterable[JobStat]) -> dict[Kind, Counts]:
    sums: dict[Kind, Counts] = {}
    for row in rows:
        sums.setdefault(Kind(row.queue, row.task), Counts()).add(Counts.of(row))
    return sums


def _row(span: JobStat.Span, begins_at: datetime, kind: Kind, counts: Counts) -> JobStat:
    names = {"span": span, "begins_at": begins_at, "queue": kind.queue, "task": kind.task}
    return JobStat(id=os.urandom(16), **names, **counts.columns())
