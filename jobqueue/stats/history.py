"""What has ended: in each part of a span of time, in the last minutes, and in all; read from the rows of statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal

from django.db.models import Count, F, Max, Q, QuerySet, Sum

from jobqueue.db.expressions import Addend, PartNumber, as_text
from jobqueue.db.prepared import raw_rows
from jobqueue.db.time_limit import time_limit
from jobqueue.models import JobStat
from jobqueue.models.stat import EPOCH, QUEUE_SPANS, SPANS
from jobqueue.stats.ends import COLUMNS, MOST, SUMS, Ends, Kind, buckets

#: how long a read of ended() may take
READ_SECONDS = 2.0
#: rows of queues, or of tasks, whose histograms are all added up; of more of them about ROWS_SAMPLED are
ROWS_MAX, ROWS_SAMPLED = 10_000, 5_000
#: pairs of queue and task, those with the most ends first
KINDS_MAX = 2_000
#: rows that totals() adds up: the totals, and what processes have written in the last minutes
TOTALS_MAX = 50_000
#: throughput and error rate are those of the last minutes, the present one included
RATE_MINUTES, DEAD_MINUTES = 5, 60

#: each of SUMS and MOST over the rows of a group, in this order
_AGGREGATES = {f"all_{name}": Sum(Addend(name)) for name in SUMS} | {f"all_{name}": Max(name) for name in MOST}
#: what is added up of each kind: of ten thousands of rows each sum costs milliseconds
_OF_KINDS = ("done", "retried", "dead", "run_us")
_DONE, _DEAD = SUMS.index("done"), SUMS.index("dead")
_IDS = 2**128


@dataclass(slots=True, kw_only=True)
class Part(Ends):
    """The ends of one part of the time."""

    begins_at: datetime


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """What ended in one queue in the `whole` time; and the jobs that `ended` DONE or FAILED in each part of it."""

    whole: Ends
    ended: list[int]


@dataclass(slots=True)
class Ended:
    """What ended in each of `parts`, oldest first; and by name in each queue, or of each task, where something did.

    Kinds are those with the most ends first, with the sums _OF_KINDS and their histograms. `share`: of the rows whose
    histograms were added up; below 1 quantiles are estimates, and all other figures are exact. `is_cut`: there are more
    kinds, which are in `parts` only.
    """

    parts: list[Part]
    queues: dict[str, QueueHistory] = field(default_factory=dict)
    kinds: dict[Kind, Ends] = field(default_factory=dict)
    share: float = 1.0
    is_cut: bool = False


def ended(
    now: datetime,
    length: timedelta,
    part: timedelta,
    *,
    by: Literal["queue", "task"],
    using: str,
    queue: str | None = None,
    task: str | None = None,
) -> Ended:
    """What ended in the `length` before `now`, of all jobs or those of a queue or task; `by` says which sums by name.

    Parts begin at whole multiples of `part` in UTC; the last one contains `now`, an instant of the database's clock.
    Rows of hours and days count for the part in which they begin. Two statements, or four by task. Raises
    StatementTimeout.
    """
    first, last = ((instant - EPOCH) // part for instant in (now - length, now))
    found = Ended([Part(begins_at=EPOCH + number * part) for number in range(first, last + 1)])
    chosen = {name: value for name, value in (("queue", queue), ("task", task)) if value is not None}
    within = {"begins_at__gte": found.parts[0].begins_at, "begins_at__lte": now}
    stats: QuerySet[Any] = JobStat.objects.using(using).filter(**within, **chosen).order_by()
    of_tasks = stats.filter(span__in=SPANS)
    # The rows of queues, which are fewer, unless a task is given.
    rows = of_tasks if task is not None else stats.filter(span__in=QUEUE_SPANS)
    with time_limit(READ_SECONDS, using=using) as limit:
        limit.check()
        count = _read_parts(found, rows, part, by)
        found.share, kinds = _share(count), 0
        if by == "task" and count:
            limit.check()
            kinds = _read_kinds(found, of_tasks)
            found.share = _share(kinds)
        limit.check()
        _read_times(found, rows, count, part, *(["queue"] if by == "queue" else []))
        limit.check()
        for number, waits, run_times, _, *kind in _histograms(of_tasks, kinds, part, *Kind._fields):
            if own := found.kinds.get(Kind(*kind)):
                own.add_times(waits, run_times, number)
    return found


def _read_parts(found: Ended, rows: QuerySet[Any], part: timedelta, by: str) -> int:
    """Add the sums of each part to `found`, and those of each queue if asked for; the number of rows."""
    names = ["queue"] if by == "queue" else []
    groups = rows.values(*names, part=PartNumber("begins_at", part)).annotate(rows=Count("pk"), **_AGGREGATES)
    first, count = (found.parts[0].begins_at - EPOCH) // part, 0
    for place, number, *values in raw_rows(groups.values_list("part", "rows", *_AGGREGATES, *names)):
        if names:
            own = found.queues.setdefault(values.pop(), QueueHistory(Ends(), [0] * len(found.parts)))
            own.ended[place - first] += int(values[_DONE]) + int(values[_DEAD])
            own.whole.add_sums(values)
        found.parts[place - first].add_sums(values)
        count += int(number)
    return count


def _read_times(found: Ended, rows: QuerySet[Any], count: int, part: timedelta, *names: str) -> None:
    """Add the histograms of `rows` to their parts, and to their queues if `names` has them."""
    first = (found.parts[0].begins_at - EPOCH) // part
    for number, waits, run_times, place, *name in _histograms(rows, count, part, *names):
        found.parts[place - first].add_times(waits, run_times, number)
        # Rows may have come since the sums were read.
        if name and name[0] in found.queues:
            found.queues[name[0]].whole.add_times(waits, run_times, number)


def _share(count: int) -> float:
    return 1.0 if count <= ROWS_MAX else ROWS_SAMPLED / count


def _read_kinds(found: Ended, rows: QuerySet[Any]) -> int:
    """Add the sums of each kind to `found`; the number of rows."""
    sums = {f"all_{name}": Sum(Addend(name)) for name in _OF_KINDS}
    groups = rows.values(*Kind._fields).annotate(all_ends=Sum(Addend(F("done") + F("dead"))), rows=Count("pk"), **sums)
    ordered = groups.order_by("-all_ends", *Kind._fields).values_list(*Kind._fields, "rows", *sums)
    count = 0
    for queue, task, number, *values in raw_rows(ordered[: KINDS_MAX + 1]):
        own: dict[str, Any] = dict(zip(_OF_KINDS, map(int, values), strict=True))
        found.kinds[Kind(queue, task)] = Ends(**own)
        count += number
    if len(found.kinds) <= KINDS_MAX:
        return count
    found.kinds.popitem()
    found.is_cut = True
    return rows.count()


def _histograms(rows: QuerySet[Any], count: int, part: timedelta, *columns: str) -> Iterator[tuple[Any, ...]]:
    """(Number of rows, Buckets of waits, those of run times, PartNumber, `columns`), of the _share() of `rows`.

    Rows of few runs are often equal: these are counted first, and each histogram is read once.
    """
    if not count:
        return
    if (share := _share(count)) < 1:
        # Ids are random, so each row is in it with the same chance.
        rows = rows.filter(pk__lt=int(share * _IDS).to_bytes(16, "big"))
    times, known = (as_text("wait_times"), as_text("run_times")), cache(buckets)
    found = Counter(raw_rows(rows.values_list(*times, PartNumber("begins_at", part), *columns)[: 2 * ROWS_MAX]))
    for (waits, run_times, *values), number in found.items():
        yield number, known(waits), known(run_times), *values


@dataclass(frozen=True, slots=True)
class Recent:
    """What ended in one queue in the last minutes."""

    throughput_per_minute: float = 0.0  # jobs that ended DONE or FAILED
    dead_per_hour: int = 0  # jobs that ended FAILED in the last hour
    runs: int = 0  # that ended in the last minutes
    error_rate: float = 0.0  # share of the runs that failed or were lost; 0 if none ended


def recent(now: datetime, using: str, queues: Sequence[str] | None = None) -> dict[str, Recent]:
    """By queue, of all or of `queues`; queues where nothing ended are not in it. One statement.

    `now`: by the clock of the database, as `begins_at` of the rows is.
    """
    minute = now.replace(second=0, microsecond=0)
    since, hour = minute - timedelta(minutes=RATE_MINUTES - 1), minute - timedelta(minutes=DEAD_MINUTES - 1)
    # Rows of these spans are not older than an hour.
    fine = (JobStat.Span.QUEUE_PROCESS, JobStat.Span.QUEUE_MINUTE)
    rows = JobStat.objects.using(using).filter(span__in=fine, begins_at__gte=hour, begins_at__lte=now)
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    lately = Q(begins_at__gte=since)
    sums = {name: Sum(Addend(name), filter=lately, default=0) for name in ("done", "retried", "dead")}
    groups = rows.values("queue").annotate(
        **{f"{name}_lately": total for name, total in sums.items()}, dead_in_hour=Sum(Addend("dead"))
    )
    minutes = (now - since) / timedelta(minutes=1)
    found = {}
    for name, *counts in groups.order_by().values_list("queue", *(f"{name}_lately" for name in sums), "dead_in_hour"):
        done, retried, dead, dead_in_hour = map(int, counts)
        rate = Ends(done=done, retried=retried, dead=dead).error_rate or 0.0
        found[name] = Recent((done + dead) / minutes, dead_in_hour, done + retried + dead, rate)
    return found


def totals(using: str) -> dict[Kind, Ends] | None:
    """The ends of each task in each queue, from the beginning; None if there are more than TOTALS_MAX rows to add up.

    One statement, so that it sees a row of a process or the total that contains it, and never both or neither. What is
    read does not grow with the age of the statistics: the roll-up moves rows of processes into the totals after five
    minutes.
    """
    rows = JobStat.objects.using(using).filter(span__in=(JobStat.Span.PROCESS, JobStat.Span.TOTAL))
    found = list(rows.only(*Kind._fields, *COLUMNS)[: TOTALS_MAX + 1])
    if len(found) > TOTALS_MAX:
        return None
    sums: dict[Kind, Ends] = {}
    for row in found:
        sums.setdefault(Kind(row.queue, row.task), Ends()).add(Ends.of(row))
    return sums


def total_rows(using: str) -> QuerySet[JobStat]:
    """The totals without what processes have written in the last minutes; those of some tasks by index."""
    return JobStat.objects.using(using).filter(span=JobStat.Span.TOTAL, begins_at=EPOCH)


def counted_kinds(using: str, most: int) -> list[Kind]:
    """The queues and tasks that have ended jobs, by name; of the first `most` rows."""
    rows = total_rows(using).order_by(*Kind._fields).values_list(*Kind._fields)
    return sorted({Kind(*row) for row in rows[:most]})
