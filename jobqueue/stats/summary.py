"""The history of a long span of time with its sums by queue and task, read in bounded time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, QuerySet, Sum

from jobqueue.db.stat_expressions import Addend, raw_rows
from jobqueue.db.time_limit import time_limit
from jobqueue.models import JobStat
from jobqueue.stats.counts import Kind
from jobqueue.stats.ends import Ends
from jobqueue.stats.history import (
    READ_SECONDS,
    Part,
    add_sums,
    empty_parts,
    histograms,
    rows_of,
    rows_of_tasks,
)

#: rows of queues, or of tasks, whose histograms are all added up; of more of them about ROWS_SAMPLED are
ROWS_MAX, ROWS_SAMPLED = 10_000, 5_000
#: pairs of queue and task, those with the most ends first
KINDS_MAX = 2_000
#: what is added up of each kind: of ten thousands of rows each sum costs milliseconds
OF_KINDS = ("done", "retried", "dead", "run_us")
_IDS = 2**128


@dataclass(frozen=True, slots=True)
class Summary:
    """Parts as read_history() gives them, and the sums of each kind, those with the most ends first.

    Of kinds only the sums OF_KINDS and the histograms are read, which are shown.

    `share`: of the rows of tasks whose histograms were added up. Below 1 quantiles of kinds are estimates, and those of
    parts may be; all other figures are exact.
    `is_cut`: there are more kinds, which are in `parts` only.
    """

    parts: list[Part]
    kinds: dict[Kind, Ends]
    share: float
    is_cut: bool


def read_summary(
    now: datetime, length: timedelta, part: timedelta, *, using: str, queue: str | None = None, task: str | None = None
) -> Summary:
    """The arguments are those of read_history(). Five statements at most. Raises StatementTimeout."""
    parts = empty_parts(now, length, part)
    rows = rows_of(parts, now, using, queue, task)
    of_tasks = rows_of_tasks(parts, now, using, queue, task)
    with time_limit(READ_SECONDS, using=using) as limit:
        count = add_sums(parts, rows, part)
        limit.check()
        kinds, count_of_tasks, is_cut = _kinds(of_tasks) if count else ({}, 0, False)
        limit.check()
        for number, waits, run_times, place in _sampled(rows, count, part):
            parts[place].add_times(waits, run_times, number)
        limit.check()
        found = _sampled(of_tasks, count_of_tasks, part, "queue", "task")
        for number, waits, run_times, _, *names in found:
            if of_kind := kinds.get(Kind(*names)):
                of_kind.add_times(waits, run_times, number)
    return Summary([*parts.values()], kinds, _share(count_of_tasks), is_cut)


def _share(count: int) -> float:
    return 1.0 if count <= ROWS_MAX else ROWS_SAMPLED / count


def _kinds(rows: QuerySet[JobStat]) -> tuple[dict[Kind, Ends], int, bool]:
    """The sums of each kind, the number of rows, and whether there are more kinds."""
    sums = {f"all_{name}": Sum(Addend(name)) for name in OF_KINDS}
    groups = rows.values("queue", "task").annotate(
        all_ends=Sum(Addend(F("done") + F("dead"))), rows=Count("pk"), **sums
    )
    ordered = groups.order_by("-all_ends", "queue", "task").values_list("queue", "task", "rows", *sums)
    found: dict[Kind, Ends] = {}
    count = 0
    for queue, task, number, *values in raw_rows(ordered[: KINDS_MAX + 1]):
        done, retried, dead, run_us = map(int, values)
        found[Kind(queue, task)] = Ends(done=done, retried=retried, dead=dead, run_us=run_us)
        count += number
    is_cut = len(found) > KINDS_MAX
    if is_cut:
        found.popitem()
        count = rows.count()
    return found, count, is_cut


def _sampled(rows: QuerySet[Any], count: int, length: timedelta, *columns: str) -> Iterator[tuple[Any, ...]]:
    """The histograms of the _share() of `count` rows. Ids are random, so each row is in it with the same chance."""
    if not count:
        return iter(())
    if (share := _share(count)) < 1:
        rows = rows.filter(pk__lt=int(share * _IDS).to_bytes(16, "big"))
    return histograms(rows, length, 2 * ROWS_MAX, *columns)
