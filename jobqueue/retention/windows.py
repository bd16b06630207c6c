"""Which ended jobs may be deleted: read a window at a time, so that no statement takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, Q, Value
from django.db.models.functions import Coalesce

from jobqueue.conf.retention import Kept
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, Stored
from jobqueue.db.expressions import Behind
from jobqueue.models import Job
from jobqueue.models.job import WINDOW, JobQuerySet
from jobqueue.retention.groups import Group
from jobqueue.retention.staying import those_that_stay

#: whatever the settings say, a job stays for so long after its end
YOUNG_SECONDS = 60.0
#: groups whose newest jobs are put in order together: each is a part of one statement
GROUPS_MAX = 100
#: not as "run_at": PostgreSQL would sort by the form in which it is read
_DUE_AT = Selected("run_at")


_COLUMNS = (
    _DUE_AT,
    "pk",
    Selected(Coalesce("finished_at", "updated_at")),
    ExpressionWrapper(Q(dedupe_key__isnull=False), BooleanField()),
    "unique_mode",
    "unique_seconds",
    Selected("created_at"),
)
#: plain SQL may have written a window beyond all dates
_LONGEST_SECONDS = 1e10


class Place(NamedTuple):
    """The place of a job in its group."""

    run_at: datetime
    job_id: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Which jobs of one queue and state may be deleted."""

    before: datetime | None  # those that ended before; None: their age does not matter
    behind: Place | None  # and those that are not behind this place: so many newer ones are there
    dedupe_seconds: float | None  # for so long after its end a job keeps its key, and stays; None: no key is kept
    now: datetime
    young_since: datetime  # no job that ended later is deleted: the rate of a queue is read from those

    @classmethod
    def of(cls, kept: Kept, now: datetime, dedupe_seconds: float | None, behind: Place | None) -> Limits:
        """The windows of the settings at this instant of the database's clock."""
        return cls(
            None if kept.age_seconds is None else now - timedelta(seconds=kept.age_seconds),
            behind,
            dedupe_seconds,
            now,
            now - timedelta(seconds=YOUNG_SECONDS),
        )

    def last_run_at(self, status: int) -> datetime | None:
        """A job that fell due later may not be deleted. None: any job may be."""
        if status == Job.Status.CANCELED:
            # It may have ended before it was due.
            return None
        ends = [self.before, None if self.behind is None else self.behind.run_at]
        return max((end for end in ends if end is not None), default=None)

    @property
    def allow_none(self) -> bool:
        """Whether no job may be deleted."""
        return self.before is None and self.behind is None

    def allow(self, place: Place, ended_at: datetime, *, held_until: datetime | None) -> bool:
        """Whether this job, which holds its dedupe key until an instant, may be deleted."""
        if ended_at > self.young_since or (held_until is not None and held_until >= self.now):
            return False
        is_old = self.before is not None and ended_at < self.before
        return is_old or (self.behind is not None and place <= self.behind)


def held_until(
    mode: int, unique_seconds: float | None, created_at: datetime, ended_at: datetime, dedupe_seconds: float | None
) -> datetime | None:
    """Until when an ended job holds the dedupe key that its row has; None: no longer, or until it is deleted."""
    if mode != WINDOW:
        return None
    if unique_seconds is not None:
        return created_at + timedelta(seconds=max(0.0, min(_LONGEST_SECONDS, unique_seconds)))
    return None if dedupe_seconds is None else ended_at + timedelta(seconds=dedupe_seconds)


@dataclass(slots=True)
class Window:
    """Some jobs of a group, one after another."""

    chosen: dict[int, datetime] = field(default_factory=dict)  # ids of those that may be deleted, and when they ended
    read: int = 0
    last: Place | None = None  # of the last one; None: there are no more


def next_window(group: Group, limits: Limits, after: Place | None, size: int, using: str) -> Window:
    """The next `size` jobs of a group behind a place, up to the last one that may be deleted."""
    found = [*behind(group.rows(using), limits.last_run_at(group.status), after, size, using)]
    window = Window(read=len(found), last=Place(*found[-1][:2]) if len(found) == size else None)
    for run_at, job_id, ended_at, has_key, mode, seconds, created_at in found:
        until = held_until(mode, seconds, created_at, ended_at, limits.dedupe_seconds) if has_key else None
        if limits.allow(Place(run_at, job_id), ended_at, held_until=until):
            window.chosen[job_id] = ended_at
    for job_id in those_that_stay([*window.chosen], group.status, using, expiring=True):
        del window.chosen[job_id]
    return window


def behind(
    rows: JobQuerySet, end: datetime | None, after: Place | None, size: int, using: str
) -> Iterator[tuple[datetime, int, datetime, bool, int, float | None, datetime]]:
    """_COLUMNS of the first `size` of `rows` behind a place, due up to `end`."""
    later = rows if end is None else rows.filter(run_at__lte=end)
    if after is None:
        yield from later.values_list(*_COLUMNS)[:size]
    elif vendor(using).compares_rows:
        # Of two statements, PostgreSQL might do the first by the primary key, past all other jobs.
        at = Value(after.run_at, Job._meta.get_field("run_at"))
        yield from later.filter(Behind("run_at", "id", at, after.job_id)).values_list(*_COLUMNS)[:size]
    else:
        # Two statements: for one with OR, SQLite sorts all the rows, and so may MySQL.
        tied = rows.filter(run_at=after.run_at, pk__gt=after.job_id).order_by("pk").values_list(*_COLUMNS)[:size]
        yield from tied
        if len(tied) < size:
            yield from later.filter(run_at__gt=after.run_at).values_list(*_COLUMNS)[: size - len(tied)]


def place_behind(most: int, groups: Sequence[Group], using: str) -> Place | None:
    """The place of the newest job that is not among the `most` newest of the groups. None: there are no more.

    Reads as many entries of the index as jobs are kept, of each group.
    """
    newest = [group.rows(using).reverse() for group in groups]
    if len(newest) <= 1:
        found = newest[0].values_list(_DUE_AT, "pk")[most : most + 1] if newest else []
        return next((Place(*row) for row in found), None)
    if len(newest) > GROUPS_MAX:
        # Of all groups in one: the database reads and sorts all ended jobs of the queue.
        of_queue = newest[0].model.objects.using(using).filter(queue=groups[0].queue, status=groups[0].status)
        rows = of_queue.order_by("-run_at", "-id").values_list(_DUE_AT, "pk")[most : most + 1]
        return next((Place(*row) for row in rows), None)
    texts: list[str] = []
    params: list[Any] = []
    for number, own in enumerate(newest):
        columns = own.annotate(due=Stored("run_at")).values_list("due", "pk")
        text, values = columns[: most + 1].query.get_compiler(using).as_sql()
        # As a table, because SQLite takes no parentheses here, and the others no LIMIT without them.
        texts.append(f"SELECT * FROM ({text}) AS g{number}")
        params += values
    of_all = f"SELECT pk FROM ({' UNION ALL '.join(texts)}) AS newest ORDER BY due DESC, pk DESC"
    with connections[using].cursor() as cursor:
        cursor.execute(f"{of_all} LIMIT 1 OFFSET {most:d}", params)
        row = cursor.fetchone()
    known = Job.objects.using(using).filter(pk=row[0]).values_list(_DUE_AT, "pk").first() if row else None
    return None if known is None else Place(*known)
