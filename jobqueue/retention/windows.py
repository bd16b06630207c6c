"""Which ended jobs are old or many enough to be deleted: read a window at a time, so that no statement takes long.

A group is the ended jobs of one queue, state, gate and priority, as the index of the claim has them. A walk reads the
windows of all groups in turns, so that a large queue does not delay the others. Results that expire have an index of
their own.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django.db import Error, connections
from django.db.models import BooleanField, ExpressionWrapper, Q, Value
from django.db.models.functions import Coalesce

from jobqueue.conf import Settings
from jobqueue.conf.queues import STATES, Kept
from jobqueue.db import is_lost_connection, vendor
from jobqueue.db.clock import Selected, Stored, read_now
from jobqueue.db.expressions import Behind, Unestimated
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job, ResultExpiry
from jobqueue.models.job import WINDOW, JobQuerySet
from jobqueue.retention.deletion import Chosen, those_that_stay
from jobqueue.transitions.claiming.candidates import queue_names

T = TypeVar("T")
logger = logging.getLogger("jobqueue.worker")

#: jobs of a window, and expiries that are read at once
SIZE = 1000
#: windows of a group before the next group has its turn
TURN = 20
#: windows of which no job may be deleted that one walk reads of a group; the next walk goes on there
STAYING_MAX = 100
#: what is kept of the jobs of a queue that ended in a state
Policy = Callable[[str, str], Kept]
INDEX = "ix_pick"
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
_Expiry = tuple[datetime, int, float]


class Group(NamedTuple):
    """Ended jobs that stand one after another in the index, oldest first."""

    queue: str
    status: int
    gate: int
    priority: int

    def rows(self, using: str) -> JobQuerySet:
        """Its jobs, in the order of the index."""
        rows = _ended(self.queue, self.status, using).filter(gate=self.gate, priority=self.priority)
        return rows.order_by("run_at", "id")


def next_group(queue: str, status: int, after: Group | None, using: str) -> Group | None:
    """The next group of a queue and state that has jobs: two index seeks."""
    ended = _ended(queue, status, using)
    if after is None:
        found = _first(ended.order_by("gate", "priority", "run_at", "id"))
    else:
        # Two statements: for one with OR, PostgreSQL would read all entries of this group.
        above = ended.filter(gate=after.gate, priority__gt=after.priority).order_by("priority", "run_at", "id")
        later = ended.filter(gate__gt=after.gate).order_by("gate", "priority", "run_at", "id")
        found = _first(above) or _first(later)
    return None if found is None else Group(queue, status, *found)


def _ended(queue: str, status: int, using: str) -> JobQuerySet:
    rows = Job.objects.using(using).filter(queue=Unestimated(queue), status=Unestimated(status))
    return vendor(using).walk_by(rows, INDEX)


def _first(rows: JobQuerySet) -> tuple[int, int] | None:
    return rows.values_list("gate", "priority").first()


class Place(NamedTuple):
    """The place of a job in its group."""

    run_at: datetime
    job_id: int


#: where a walk goes on in a group of which many jobs stay
Places = MutableMapping[Group, Place]


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
        cursor.execute(of_all + vendor(using).limit_sql(1, offset=most), params)
        row = cursor.fetchone()
    known = Job.objects.using(using).filter(pk=row[0]).values_list(_DUE_AT, "pk").first() if row else None
    return None if known is None else Place(*known)


@dataclass(slots=True)
class _Course:
    """The way through one group."""

    group: Group
    limits: Limits
    using: str
    places: Places | None
    after: Place | None = None
    jumped: bool = False
    staying: int = 0
    done: bool = field(default=False)

    def turn(self) -> Iterator[Chosen]:
        """What may be deleted of the next windows, of TURN at most."""
        for _ in range(TURN):
            read = partial(next_window, self.group, self.limits, self.after, SIZE, self.using)
            window: Window = _read(read, self.using)
            yield Chosen(self.group.queue, self.group.status, window.chosen)
            self._move(window)
            if self.done:
                return

    def _move(self, window: Window) -> None:
        """Go on behind a window. Jobs that stay, and were read by the last walk, are jumped over."""
        self.after, self.done = window.last, window.last is None
        if self.places is None or self.done or window.chosen or self.after is None:
            return
        if not self.jumped:
            self.jumped = True
            self.after = max(self.after, self.places.pop(self.group, self.after))
        self.staying += 1
        if self.staying == STAYING_MAX:
            self.places[self.group], self.done = self.after, True


@dataclass(frozen=True, slots=True)
class Walk:
    """What is looked at: which queues (None: all), and what is kept of them."""

    policy: Policy
    dedupe_seconds: float | None
    queues: Sequence[str] | None = None

    @classmethod
    def of(cls, settings: Settings) -> Walk:
        """All queues, by the settings."""
        return cls(settings.queue_retention, settings.dedupe_seconds)

    def chosen(self, using: str, places: Places | None = None) -> Iterator[Chosen | None]:
        """The jobs that may be deleted, of one window after another; None or no jobs now and then, to look at the time.

        The caller may delete them before it asks for the next ones. With `places` a walk reads the oldest
        jobs of each group until it meets a window of which all stay, and then goes on where the last walk has stopped.
        An error of the database ends the walk through the group, and is logged; a lost connection is raised.
        """
        courses: list[_Course] = []
        for course in self._courses(using, places):
            yield None
            if course is not None:
                yield from _caught(course.turn(), course.group.queue, using)
                courses.append(course)
        while courses := [course for course in courses if not course.done]:
            for course in courses:
                before = course.after
                yield from _caught(course.turn(), course.group.queue, using)
                course.done = course.done or course.after == before

    def _courses(self, using: str, places: Places | None) -> Iterator[_Course | None]:
        now = _read(partial(read_now, using), using)
        names = self.queues if self.queues is not None else _read(partial(queue_names, using=using), using)
        for queue in names:
            for state in STATES:
                kept = self.policy(queue, state)
                if not kept.all:
                    own = self._of_state(queue, Job.Status[state.upper()], kept, now, using, places)
                    yield from _caught(own, queue, using)

    def _of_state(
        self, queue: str, status: int, kept: Kept, now: datetime, using: str, places: Places | None
    ) -> Iterator[_Course | None]:
        yield None
        behind = None
        if kept.most is not None:
            groups = list(_groups(queue, status, using))
            behind = _read(partial(place_behind, kept.most, groups, using), using)
        limits = Limits.of(kept, now, self.dedupe_seconds, behind)
        if not limits.allow_none:
            for group in _groups(queue, status, using):
                yield _Course(group, limits, using, places)


def _groups(queue: str, status: int, using: str) -> Iterator[Group]:
    group: Group | None = None
    while (group := _read(partial(next_group, queue, status, group, using), using)) is not None:
        yield group


def _read(work: Callable[[], T], using: str) -> T:
    return retry_transient("housekeeping", work, using=using)


def _caught(found: Iterator[T], queue: str, using: str) -> Iterator[T]:
    """`found` up to an error of the database, which must not keep other queues from being looked at."""
    try:
        yield from found
    except Error as error:
        if is_lost_connection(error, using):
            raise
        logger.warning("ended jobs of queue %s cannot be looked at, and stay until that works: %s", queue, error)


def results_past_ttl(dedupe_seconds: float | None, *, using: str, writes: bool) -> Iterator[Chosen | None]:
    """Those whose time had come when this was called, the earliest first; None now and then.

    With `writes`, the expiries of jobs that are not DONE any more are deleted, and those of jobs that are needed for
    longer, as for their dedupe key, are moved.
    """
    now = _read(partial(read_now, using), using)
    last: _Expiry | None = None
    while True:
        rows = _read(partial(_read_expiries, last, now, using), using)
        if not rows:
            return
        by_queue, later = _read(partial(_sort_expiries, rows, now, dedupe_seconds, using), using)
        if writes:
            kept = {job_id for ended in by_queue.values() for job_id in ended}
            gone = [job_id for _, job_id, _ in rows if job_id not in kept and job_id not in later]
            retry_transient("housekeeping", partial(_write_expiries, gone, later, using), using=using)
        yield None
        yield from (Chosen(queue, Job.Status.DONE, ended) for queue, ended in by_queue.items())
        last = rows[-1]


def _read_expiries(last: _Expiry | None, until: datetime, using: str) -> list[_Expiry]:
    """The next expiries up to an instant, in the order of the index."""
    due = ResultExpiry.objects.using(using).filter(expires_at__lte=until).order_by("expires_at", "pk")
    due = vendor(using).force_index(due, "ix_result_expiry")
    columns = ("expires_at", "pk", "ttl_seconds")
    if last is None:
        return list(due.values_list(*columns)[:SIZE])
    # Acks that were written together have the same instant.
    tied = ResultExpiry.objects.using(using).filter(expires_at=last[0], pk__gt=last[1]).order_by("pk")
    rows = list(tied.values_list(*columns)[:SIZE])
    if len(rows) < SIZE:
        rows += due.filter(expires_at__gt=last[0]).values_list(*columns)[: SIZE - len(rows)]
    return rows


def _sort_expiries(
    rows: list[_Expiry], now: datetime, dedupe_seconds: float | None, using: str
) -> tuple[dict[str, dict[int, datetime]], dict[int, datetime]]:
    """When those ended that may be deleted, by queue; and until when others stay."""
    ttls = {job_id: ttl for _, job_id, ttl in rows}
    jobs = Job.objects.using(using).filter(pk__in=[*ttls], status=Job.Status.DONE)
    columns = ("pk", "queue", Coalesce("finished_at", "updated_at"), "dedupe_key")
    windows = ("unique_mode", "unique_seconds", "created_at")
    by_queue: dict[str, dict[int, datetime]] = defaultdict(dict)
    later: dict[int, datetime] = {}
    for job_id, queue, ended_at, key, mode, seconds, created_at in jobs.values_list(*columns, *windows):
        held = held_until(mode, seconds, created_at, ended_at, dedupe_seconds) if key is not None else None
        # A job that was run again has ended later.
        until = ended_at + timedelta(seconds=ttls[job_id])
        until = until if held is None else max(until, held)
        if until <= now:
            by_queue[queue][job_id] = ended_at
        else:
            later[job_id] = until
    return by_queue, later


def _write_expiries(gone: list[int], later: dict[int, datetime], using: str) -> None:
    rows = ResultExpiry.objects.using(using)
    if gone:
        vendor(using).delete_by_key(rows, gone)
    for job_id, until in later.items():
        rows.filter(pk=job_id).update(expires_at=until)
