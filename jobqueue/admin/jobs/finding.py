"""The jobs of one page of the list, found so that its cost has a bound, whatever is chosen and however large the table.

Few jobs of a queue, worker or state are all read through the index that has them. Else jobs are read in the order of
ids, newest first, by an index that has those of the state in this order, or by the primary key. Where other conditions
decide which of them match, SEARCHED are looked at, and more while the page is not full and time is left; the link to
older jobs goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar

from django.db.models import Q, QuerySet

from jobqueue.admin.jobs import search
from jobqueue.admin.jobs.filters import Selection
from jobqueue.admin.jobs.states import ENDED
from jobqueue.admin.page import readonly
from jobqueue.admin.page.keyset import Cursor
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, ids_that_meet, prepare_rows, totals
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE, JobQuerySet
from jobqueue.runs.arguments import with_argument
from jobqueue.runs.job_filter import in_order
from jobqueue.transitions.claiming.candidates import queue_names

#: jobs that are looked at in one go, where no index has those that match
SEARCHED = 2_000
#: how often a page that is not full looks at more, and for how long: the first one, and one that somebody asked for
WINDOWS_MAX, LOOK_SECONDS, FURTHER_SECONDS = 16, 0.01, 0.08
#: queues whose held jobs are looked for in one statement
QUEUES_ASKED = 20
#: jobs of a tag that one page looks at
TAGGED = 2000
#: Where indexes end with the key, ix_lease has these jobs in the order of ids, as they have no lease. FAILED jobs are
#: read by in_order().
_IN_ORDER = (Job.Status.READY, Job.Status.CANCELED, Job.Status.DONE)

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
    # The payloads of so many jobs were looked through, back to the time at which the last of them was added.
    payloads: int = 0
    since: datetime | None = None


def find(wanted: Selection, cursor: Cursor | None, size: int, using: str) -> Found:
    """The page of up to `size` jobs beyond `cursor`, whose only value is an id."""
    if text := wanted.chosen.get("arg"):
        return _of_argument(text, wanted.rest("arg"), cursor, size, using)
    few = _few(wanted, using)
    if few is not None:
        return _part(few, cursor, size)
    rows, rest = _in_order_of_ids(wanted, using)
    if tag := wanted.chosen.get("tag"):
        return _of_tag(tag, rest, cursor, size, using)
    if rest:
        return _looked_for(rows, rest, cursor, size)
    ids = _ids(_beyond(rows, "pk", cursor), cursor, size + 1)
    return _page(ids, _count(rows), None, cursor, size, 0)


def _looked_for(rows: JobQuerySet, rest: Q, cursor: Cursor | None, size: int) -> Found:
    """A page of those `rows` beyond the cursor that meet the conditions of `rest`."""
    back, ends_at = False, time.monotonic() + LOOK_SECONDS
    if cursor is not None:
        back, ends_at = cursor.back, time.monotonic() + FURTHER_SECONDS
    ids: list[int] = []
    ahead, looked_at, count = _beyond(rows, "pk", cursor), 0, 0
    while True:
        part = ahead.order_by("pk" if back else "-pk")[:SEARCHED]
        seen = totals(part, rest)
        if seen.meeting:
            ids += ids_that_meet(part, rest, order="ASC" if back else "DESC", most=size + 1 - len(ids))
        looked_at, count = looked_at + SEARCHED, count + seen.meeting
        end = (seen.highest if back else seen.lowest) if seen.number == SEARCHED else None
        if end is None or len(ids) > size or looked_at >= WINDOWS_MAX * SEARCHED or time.monotonic() > ends_at:
            return _page(ids, min(count, readonly.COUNT_CAP), end, cursor, size, looked_at)
        ahead = rows.filter(Q(pk__gt=end) if back else Q(pk__lt=end))


def _of_tag(tag: str, rest: Q, cursor: Cursor | None, size: int, using: str) -> Found:
    """The jobs of a tag: its next TAGGED ids from ix_tag, and those of them that meet the other conditions."""
    back = cursor is not None and cursor.back
    entries = search.tagged(tag, using)
    order = "job_id" if back else "-job_id"
    ids = list(_beyond(entries, "job_id", cursor).order_by(order).values_list("job_id", flat=True)[:TAGGED])
    end = int(ids[-1]) if len(ids) == TAGGED else None
    part = _by_key(using).filter(pk__in=ids)[:TAGGED]
    if rest:
        count = totals(part, rest).meeting if ids else 0
        found = ids_that_meet(part, rest, order="ASC" if back else "DESC", most=size + 1) if count else []
    else:
        found, count = _ids(_by_key(using).filter(pk__in=ids), cursor, size + 1), _count(entries)
    return _page(found, count, end, cursor, size, TAGGED if rest else 0)


def _of_argument(text: str, rest: Q, cursor: Cursor | None, size: int, using: str) -> Found:
    """A page of the jobs with an argument; it has no way back but to the newest."""
    before = None if cursor is None else cursor.values[0]
    found = with_argument(text, rest, most=size, using=using, before=before)
    behind = found.last_id
    return Found(found.ids, len(found.ids), None, behind, found.number, found.number, found.since)


def _by_key(using: str) -> JobQuerySet:
    """All jobs, bound to the primary key."""
    jobs: JobQuerySet = vendor(using).force_index(Job.objects.using(using), "PRIMARY")
    return jobs.only("pk")


def _ids(rows: QuerySet[Any], cursor: Cursor | None, most: int) -> list[int]:
    back = cursor is not None and cursor.back
    return list(rows.order_by("pk" if back else "-pk").values_list("pk", flat=True)[:most])


def _count(rows: QuerySet[Any]) -> int:
    return rows.order_by().values("pk")[: readonly.COUNT_CAP].count()


def _page(ids: list[int], count: int, end: int | None, cursor: Cursor | None, size: int, searched: int) -> Found:
    """A page of `ids`, the first ones beyond the cursor; `end` is the id of the last job looked at, if more follow."""
    back = cursor is not None and cursor.back
    beyond = ids[size - 1] if len(ids) > size else end
    del ids[size:]
    if back:
        ids.reverse()
    start = None
    if cursor is not None:
        # A page on which nothing was found leads back to where its cursor came from, too.
        at = cursor.values[0] + (1 if back else -1)
        start = at if not ids else ids[-1] if back else ids[0]
    before, behind = (beyond, start) if back else (start, beyond)
    return Found(ids, count, before, behind, searched if end is not None or cursor is not None else 0)


def _beyond(rows: Rows, key: str, cursor: Cursor | None) -> Rows:
    return rows if cursor is None else rows.filter(**{f"{key}__{'gt' if cursor.back else 'lt'}": cursor.values[0]})


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
        known = _by_key(using).filter(pk__in=wanted.ids)[: len(wanted.ids)]
        return ids_that_meet(known, wanted.rest(), most=search.FOUND_MAX) if wanted.ids else []
    if wanted.chosen.get("state") == "held" and not {"queue", "worker"} & wanted.chosen.keys():
        held, rest = _held(using), wanted.rest("state")
        if not held or not rest:
            return held
        return ids_that_meet(_by_key(using).filter(pk__in=held)[: len(held)], rest, most=len(held))
    for one in _sets(wanted, using):
        # In the order of the index, so that nothing is sorted; without one, PostgreSQL may walk through the table
        # until it has found so many.
        rows = vendor(using).walk_by(Job.objects.using(using).filter(one.condition), one.by).order_by(*one.order)
        ids = list(rows.values_list("pk", flat=True)[: readonly.COUNT_CAP])
        if len(ids) < readonly.COUNT_CAP:
            rest = wanted.rest(*one.served)
            some = rows.only("pk")[: readonly.COUNT_CAP]
            return ids_that_meet(some, rest, most=readonly.COUNT_CAP) if rest else ids
    return None


def _held(using: str) -> list[int] | None:
    """The ids of all held jobs, of one queue after the other; None if there are COUNT_CAP or more, or too many queues.

    With queue IN (...) and a forced index, MySQL may read the whole index: it then goes by averages of its statistics,
    and does not look up how many entries each queue has.
    """
    names, ids = queue_names(using=using, limit=search.QUEUES_SEARCHED + 1), list[int]()
    if len(names) > search.QUEUES_SEARCHED:
        return None
    for start in range(0, len(names), QUEUES_ASKED):
        runs = [{"queue": name} for name in names[start : start + QUEUES_ASKED]]
        ids += [job_id for (job_id,) in _held_of_a_queue(readonly.COUNT_CAP, using).seek_each(runs)]
        if len(ids) >= readonly.COUNT_CAP:
            return None
    return ids


@cache
def _held_of_a_queue(most: int, using: str) -> Prepared:
    queue, status = UnestimatedSlot("queue", NameField()), Unestimated(int(Job.Status.READY))
    rows = Job.objects.using(using).filter(queue=queue, status=status, gate=HELD_GATE)
    return prepare_rows(vendor(using).walk_by(rows, "ix_pick").values_list("pk")[:most])


class _Set(NamedTuple):
    """Jobs that an index has, seldom many; in its order, behind columns that are the same in all of them."""

    by: str  # an index
    condition: Q
    served: tuple[str, ...]  # the filters that are met
    order: tuple[str, ...]


_IN_QUEUE = ("gate", "priority", "run_at", "id")


def _sets(wanted: Selection, using: str) -> Iterator[_Set]:
    state, queue = wanted.chosen.get("state"), wanted.chosen.get("queue")
    if "worker" in wanted.chosen:
        condition = Q(locked_by=wanted.chosen["worker"], status=Unestimated(int(Job.Status.PROCESSING)))
        nothing = "\x00" in wanted.chosen["worker"]
        yield _Set("ix_worker", Q(pk__in=()) if nothing else condition, ("worker",), ())
    elif state == "held" and queue is not None:
        held = _in_queue(queue, Job.Status.READY) & Q(gate=HELD_GATE)
        yield _Set("ix_pick", held, ("state", "queue"), ())
    elif state in ("running", "expired"):
        condition = Q(status=Unestimated(int(Job.Status.PROCESSING)))
        if state == "expired":
            condition &= Q(lock_until__lt=UtcNow())
        yield _Set("ix_lease", condition, ("state",), ("lock_until",))
    elif queue is not None and "tag" not in wanted.chosen:
        served = ("queue", "state") if state in ENDED.values() else ("queue",)
        order = _IN_QUEUE if wanted.status is not None else ("status", *_IN_QUEUE)
        yield _Set("ix_pick", _in_queue(queue, wanted.status), served, order)
    elif wanted.status in _IN_ORDER and "tag" not in wanted.chosen and not vendor(using).indexes_end_with_key:
        # Where indexes do not end with the key, no index has many of them in the order of ids.
        condition = Q(status=Unestimated(int(wanted.status)), lock_until__isnull=True)
        yield _Set("ix_lease", condition, ("state",) if state in ENDED.values() else (), ("lock_until",))


def _in_queue(name: str, status: int | None) -> Q:
    if "\x00" in name:
        return Q(pk__in=())
    rows = Q(queue=Unestimated(name))
    return rows if status is None else rows & Q(status=Unestimated(int(status)))


def _in_order_of_ids(wanted: Selection, using: str) -> tuple[JobQuerySet, Q]:
    """Rows that an index has in the order of ids, and what else must be true of them."""
    age, status = wanted.conditions.get("age", Q()), wanted.status
    jobs: JobQuerySet = Job.objects.using(using)
    served = ("age", "state") if wanted.chosen.get("state") in ENDED.values() else ("age",)
    if "tag" in wanted.chosen:
        return jobs, wanted.rest("tag")
    if status == Job.Status.FAILED:
        rows = in_order(using)
    elif status in _IN_ORDER and vendor(using).indexes_end_with_key:
        rows = vendor(using).walk_by(jobs.filter(status=status, lock_until__isnull=True), "ix_lease")
    else:
        # Bounded even if few rows have the status: without a bound, a planner could read the whole table.
        rows, served = _by_key(using), ("age",)
    return rows.filter(age).only("pk"), wanted.rest(*served)
