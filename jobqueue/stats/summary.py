"""The history of a long span of time with its sums by queue and task, read in bounded time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, QuerySet, Sum

from jobqueue.db.stat_expressions import Addend
from jobqueue.db.time_limit import time_limit
from jobqueue.models import JobStat
from jobqueue.stats.counts import Kind
from jobqueue.stats.ends import Ends
from jobqueue.stats.history import AGGREGATES, READ_SECONDS, Part, add_sums, empty_parts, histograms, rows_of

#: rows whose histograms are all added up; of more of them about ROWS_SAMPLED are
ROWS_MAX, ROWS_SAMPLED = 10_000, 5_000
#: pairs of queue and task, those with the most ends first
KINDS_MAX = 2_000
_IDS = 2**128


@dataclass(frozen=True, slots=True)
class Summary:
    """Parts as read_history() gives them, and the sums of each kind, those with the most ends first.

    `share`: of the rows whose histograms were added up. Below 1 quantiles are estimates; all other figures are exact.
    `is_cut`: there are more kinds, which are in `parts` only.
    """

    parts: list[Part]
    kinds: dict[Kind, Ends]
    share: float
    is_cut: bool


def read_summary(
    now: datetime, length: timedelta, part: timedelta, *, using: str, queue: str | None = None, task: str | None = None
) -> Summary:
    """The arguments are those of read_history(). Three statements at most. Raises StatementTimeout."""
    parts = empty_parts(now, length, part)
    rows = rows_of(parts, now, using, queue, task)
    with time_limit(READ_SECONDS, using=using) as limit:
        count = add_sums(parts, rows, part)
        limit.check()
        kinds, is_cut = _kinds(rows) if count else ({}, False)
        limit.check()
        share = 1.0 if count <= ROWS_MAX else ROWS_SAMPLED / count
        if count:
            _add_times(parts, kinds, rows, share, part)
    return Summary([*parts.values()], kinds, share, is_cut)


def _kinds(rows: QuerySet[JobStat]) -> tuple[dict[Kind, Ends], bool]:
    """The sums of each kind, and whether there are more kinds."""
    sums = rows.values("queue", "task").annotate(all_ends=Sum(Addend(F("done") + F("dead"))), **AGGREGATES)
    ordered = sums.order_by("-all_ends", "queue", "task").values_list("queue", "task", *AGGREGATES)
    found: dict[Kind, Ends] = {}
    for queue, task, *values in ordered[: KINDS_MAX + 1]:
        found[Kind(queue, task)] = ends = Ends()
        ends.add_sums(values)
    is_cut = len(found) > KINDS_MAX
    if is_cut:
        found.popitem()
    return found, is_cut


def _add_times(
    parts: Mapping[int, Part],
    kinds: Mapping[Kind, Ends],
    rows: QuerySet[JobStat],
    share: float,
    length: timedelta,
) -> None:
    """Add histograms of that share of the rows. Ids are random, so each row is in it with the same chance."""
    if share < 1:
        rows = rows.filter(pk__lt=int(share * _IDS).to_bytes(16, "big"))
    for number, waits, run_times, part, queue, task in histograms(rows, length, 2 * ROWS_MAX, "queue", "task"):
        parts[part].add_times(waits, run_times, number)
        if of_kind := kinds.get(Kind(queue, task)):
            of_kind.add_times(waits, run_times, number)
