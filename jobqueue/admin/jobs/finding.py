"""The jobs of one page of the list, found so that its cost has a bound, whatever is chosen and however large the table.

Few jobs of a queue, worker or live state are all read through the index that has them. Else jobs are read in the order
of ids, newest first; where other conditions decide which of them match, no more than SEARCHED are looked at, and the
link to older jobs goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Count, Max, Min, Q, QuerySet

from jobqueue.admin.jobs import searching
from jobqueue.admin.jobs.filters import Selection
from jobqueue.admin.page import readonly
from jobqueue.admin.page.keyset import Cursor
from jobqueue.db import vendor
from jobqueue.dead_letters.filtering import in_order
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE, JobQuerySet
from jobqueue.transitions.claiming.candidates import queue_names

#: jobs that one page looks at, where no index has those that match
SEARCHED = 20_000
#: jobs of a tag that one page looks at
TAGGED = 2000
#: seldom many, and not in the order of ids in ix_lease where indexes do not end with the key; FAILED jobs have ix_dead
_UNORDERED = (Job.Status.READY, Job.Status.CANCELED)

Rows = TypeVar("Rows", bound=QuerySet[Any])


@dataclass(frozen=True, slots=True)
class Found:
    """The ids of a page, newest first, and the ids behind which the pages before and behind it begin."""

    ids: list[int]
    # Of all pages, or of those jobs that were looked at; up to COUNT_CAP.
    count: int
    before: int | None
    behind: int | None
    # 0: all jobs that match are counted, and every page has as many as it can.
    searched: int = 0


def find(wanted: Selection, cursor: Cursor | None, size: int, using: str) -> Found:
    """The page of up to `size` jobs beyond `cursor`, whose only value is an id."""
    few = _few(wanted, using)
    if few is not None:
        return _part(few, cursor, size)
    rows, rest = _in_order_of_ids(wanted, using)
    if tag := wanted.chosen.get("tag"):
        return _of_tag(tag, rest, cursor, size, using)
    count, end = rows, None
    rows = _beyond(rows, "pk", cursor)
    if rest:
        end = _end(rows, cursor)
        if end is not None:
            rows = rows.filter(Q(pk__lte=end) if cursor and cursor.back else Q(pk__gte=end))
        rows = count = rows.filter(rest)
    return _walked(rows, count, end, cursor, size, SEARCHED if rest else 0)


def _of_tag(tag: str, rest: Q, cursor: Cursor | None, size: int, using: str) -> Found:
    """The jobs of a tag: its next TAGGED ids from ix_tag, and those of them that meet the other conditions."""
    entries = searching.tagged(tag, using)
    order = "job_id" if cursor and cursor.back else "-job_id"
    ids = list(_beyond(entries, "job_id", cursor).order_by(order).values_list("job_id", flat=True)[:TAGGED])
    end = int(ids[-1]) if len(ids) == TAGGED else None
    rows = Job.objects.using(using).filter(rest, pk__in=ids)
    return _walked(rows, rows if rest else entries, end, cursor, size, TAGGED if rest else 0)


def _walked(
    rows: QuerySet[Any], count: QuerySet[Any], end: int | None, cursor: Cursor | None, size: int, most: int
) -> Found:
    """A page of `rows`, which are beyond the cursor; `end` is the id of the last one looked at, if more follow."""
    back = cursor is not None and cursor.back
    ids = list(rows.order_by("pk" if back else "-pk").values_list("pk", flat=True)[: size + 1])
    beyond = ids[size - 1] if len(ids) > size else end
    del ids[size:]
    if back:
        ids.reverse()
    start = None
    if cursor is not None:
        # Back to where the cursor came from: also from a page on which nothing was found.
        at = cursor.values[0] + (1 if back else -1)
        start = at if not ids else ids[-1] if back else ids[0]
    before, behind = (beyond, start) if back else (start, beyond)
    number = count.order_by().values("pk")[: readonly.COUNT_CAP].count()
    return Found(ids, number, before, behind, most if end is not None or cursor is not None else 0)


def _beyond(rows: Rows, key: str, cursor: Cursor | None) -> Rows:
    return rows if cursor is None else rows.filter(**{f"{key}__{'gt' if cursor.back else 'lt'}": cursor.values[0]})


def _end(rows: JobQuerySet, cursor: Cursor | None) -> int | None:
    """The id of the last of the first SEARCHED rows; None if there are fewer."""
    back = cursor is not None and cursor.back
    first = rows.order_by("pk" if back else "-pk").values("pk")[:SEARCHED]
    found = first.aggregate(n=Count("pk"), end=Max("pk") if back else Min("pk"))
    return int(found["end"]) if found["n"] == SEARCHED else None


def _part(ids: list[int], cursor: Cursor | None, size: int) -> Found:
    """A page of ids that have all been read."""
    ids.sort(reverse=True)
    if cursor is None:
        place = 0
    elif cursor.back:
        place = max(0, sum(one > cursor.values[0] for one in ids) - size)
    else:
        place = sum(one >= cursor.values[0] for one in ids)
    shown = ids[place : place + size]
    before = ids[place] if 0 < place < len(ids) else None
    return Found(shown, len(ids), before, shown[-1] if place + size < len(ids) else None)


def _few(wanted: Selection, using: str) -> list[int] | None:
    """The ids of all jobs that match, in no order; None if no index has them, or if it has COUNT_CAP or more."""
    if wanted.ids is not None:
        return list(Job.objects.using(using).filter(wanted.rest()).values_list("pk", flat=True)[: searching.FOUND_MAX])
    for index, condition, served in _sets(wanted, using):
        # Without ORDER BY: the database sorts nothing, and stops at the limit.
        rows = vendor(using).force_index(Job.objects.using(using).filter(condition), index)
        ids = list(rows.order_by().values_list("pk", flat=True)[: readonly.COUNT_CAP])
        if len(ids) < readonly.COUNT_CAP:
            rest = wanted.rest(*served)
            # Rows that have come since then could exceed it.
            return list(rows.filter(rest).values_list("pk", flat=True)[: readonly.COUNT_CAP]) if rest else ids
    return None


def _sets(wanted: Selection, using: str) -> Iterator[tuple[str, Q, tuple[str, ...]]]:
    """(index, condition, filters that are met) of the sets of jobs that an index has and that are seldom large."""
    state, queue = wanted.chosen.get("state"), wanted.chosen.get("queue")
    if "worker" in wanted.chosen:
        yield "ix_worker", wanted.conditions["worker"], ("worker",)
    elif state == "held":
        names = queue_names(using=using, limit=searching.QUEUES_SEARCHED) if queue is None else [queue]
        yield "ix_pick", _in_queues(names, Job.Status.READY) & Q(gate=HELD_GATE), ("state", "queue")
    elif state in ("running", "expired"):
        yield "ix_lease", wanted.conditions["state"], ("state",)
    elif queue is not None and "tag" not in wanted.chosen:
        served = ("queue",) if state in ("ready", "scheduled") or state is None else ("queue", "state")
        yield "ix_pick", _in_queues([queue], wanted.status), served
    elif wanted.status in _UNORDERED and "tag" not in wanted.chosen and not vendor(using).indexes_end_with_key:
        yield "ix_lease", Q(status=wanted.status), ("state",) if state == "canceled" else ()


def _in_queues(names: list[str], status: int | None) -> Q:
    rows = Q(pk__in=()) if any("\x00" in name for name in names) else Q(queue__in=names)
    return rows if status is None else rows & Q(status=status)


def _in_order_of_ids(wanted: Selection, using: str) -> tuple[JobQuerySet, Q]:
    """Rows that an index has in the order of ids, and what else must be true of them."""
    age = wanted.conditions.get("age", Q())
    rows: JobQuerySet = Job.objects.using(using)
    if "tag" in wanted.chosen:
        return rows, wanted.rest("tag")
    served = ("age",) if wanted.chosen.get("state") in ("ready", "scheduled") else ("age", "state")
    if wanted.status == Job.Status.FAILED:
        rows = in_order(using)
    elif wanted.status is not None:
        rows = rows.filter(status=wanted.status)
        if vendor(using).indexes_end_with_key and wanted.status != Job.Status.PROCESSING:
            # A job that is not running has no lease: among equal entries of ix_lease, those of ids follow. Elsewhere
            # the planner chooses, by how frequent the status is.
            rows = vendor(using).walk_by(rows.filter(lock_until__isnull=True), "ix_lease")
    return rows.filter(age), wanted.rest(*served)
