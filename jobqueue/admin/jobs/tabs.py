"""The states as tabs above the list of jobs, each with the number of its jobs, counted by an index up to a cap."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from django.db.models import Count
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.filters import Selection
from jobqueue.admin.jobs.states import LABELS, STATE_OF
from jobqueue.admin.page import readonly
from jobqueue.admin.page.formatting import StrOrPromise
from jobqueue.db import vendor
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_count
from jobqueue.db.time_limit import TimeLimit, time_limit
from jobqueue.exceptions import StatementTimeout
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.models.states import STATES, WAITING, condition_of
from jobqueue.stats.live import count_live, is_at_least
from jobqueue.transitions.claiming.candidates import queue_names

#: how long all counts together may take
SECONDS = 0.5
#: waiting jobs of each queue that are counted at least, where there are too many to look at each of them
OF_A_QUEUE = 100
QUEUES_COUNTED = 200
_READY = Unestimated(int(Job.Status.READY))


class Tab(NamedTuple):
    """A state as a link. `figure` is "" if its jobs were not counted."""

    word: StrOrPromise
    state: str
    figure: str


class Number(NamedTuple):
    """`found` jobs, or more."""

    found: int
    capped: bool


def tabs(wanted: Selection, using: str) -> list[Tab]:
    """All jobs, and those of each state. Counted with no filter but that of the queue: indexes serve no other one."""
    found = {} if wanted.chosen.keys() - {"state", "queue"} else _counts(wanted.chosen.get("queue"), using)
    words: dict[str, StrOrPromise] = {"": _("all"), **{state: LABELS[state] for state in STATES}}
    return [Tab(word, state, _text(found.get(state))) for state, word in words.items()]


def _text(number: Number | None) -> str:
    if number is None:
        return ""
    return readonly.capped(number.found, number.found if number.capped else number.found + 1)


def _counts(queue: str | None, using: str) -> dict[str, Number]:
    """Map each state, and "" for all jobs, to its count; empty if counting takes too long."""
    if queue is not None and "\x00" in queue:
        return {}
    try:
        with time_limit(SECONDS, using=using) as limit:
            of_status = _of_statuses(queue, using)
            limit.check()
            expired = _rows(queue, using).filter(condition_of("expired")).values("pk")[: readonly.COUNT_CAP].count()
            limit.check()
            waiting = of_status[Job.Status.READY]
            found = _of_many_waiting(queue, using, limit) if waiting.capped else _of_few_waiting(queue, using)
    except StatementTimeout:
        return {}
    total = sum(number.found for number in of_status.values())
    every = _number(total) if not any(number.capped for number in of_status.values()) else _number(readonly.COUNT_CAP)
    of_state = {state: of_status[status] for status, state in STATE_OF.items() if status != Job.Status.READY}
    return {"": every, "expired": _number(expired)} | found | of_state


def _number(count: int) -> Number:
    return Number(min(count, readonly.COUNT_CAP), count >= readonly.COUNT_CAP)


def _rows(queue: str | None, using: str) -> JobQuerySet:
    """All jobs, or those of a queue, bound to the index that begins with the status, or with queue and status."""
    jobs = Job.objects.using(using)
    if queue is None:
        return vendor(using).force_index(jobs.order_by("lock_until"), "ix_lease")
    # In the order of the index: PostgreSQL could take a walk through the table for cheaper.
    rows = jobs.filter(queue=Unestimated(queue)).order_by("gate", "priority", "run_at", "id")
    return vendor(using).force_index(rows, "ix_pick")


def _of_statuses(queue: str | None, using: str) -> dict[int, Number]:
    """One statement, which reads up to COUNT_CAP entries of an index for each status."""
    found = {int(status): 0 for status in Job.Status}
    runs: list[dict[str, object]] = [{"status": status, "queue": queue} for status in found]
    for count, status in _counted(queue is None, readonly.COUNT_CAP, using).seek_each(runs):
        if count:
            found[status] = count
    return {status: _number(count) for status, count in found.items()}


@cache
def _counted(of_all: bool, most: int, using: str) -> Prepared:
    # Unestimated: of a status that was rare, PostgreSQL would read and sort the jobs of all queues.
    status = UnestimatedSlot("status", Job._meta.get_field("status"))
    jobs = Job.objects.using(using).filter(status=status)
    if of_all:
        rows = vendor(using).force_index(jobs.order_by("lock_until"), "ix_lease")
    else:
        rows = jobs.filter(queue=UnestimatedSlot("queue", NameField())).order_by("gate", "priority", "run_at", "id")
        rows = vendor(using).force_index(rows, "ix_pick")
    return prepare_count(rows.values_list("pk")[:most], given=[Slot("status", Job._meta.get_field("status"))])


def _of_few_waiting(queue: str | None, using: str) -> dict[str, Number]:
    """Each of them is looked at."""
    rows = _rows(queue, using).filter(status=_READY).values("run_at", "gate", "attempts")[: readonly.COUNT_CAP]
    found = rows.aggregate(**{state: Count("pk", filter=STATES[state].rest) for state in (*WAITING, "retrying")})
    return {state: _number(count) for state, count in found.items()}


def _of_many_waiting(queue: str | None, using: str, limit: TimeLimit) -> dict[str, Number]:
    """By queue, gate and priority: an index has their jobs by the time at which they are due.

    Those that are retrying are not counted: no index tells them from others that are scheduled.
    """
    names = queue_names(using=using, limit=QUEUES_COUNTED + 1) if queue is None else [queue]
    most = max(OF_A_QUEUE, readonly.COUNT_CAP // max(1, len(names)))
    live = count_live(names[:QUEUES_COUNTED], using, limit.check, most, only=WAITING).values()
    more = len(names) > QUEUES_COUNTED
    found = {}
    for state in WAITING:
        count = sum(getattr(one, state) for one in live)
        found[state] = Number(count, more or any(is_at_least(one, state, most) for one in live))
    return found
