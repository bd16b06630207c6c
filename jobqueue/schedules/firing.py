"""Fires schedules: one look of a worker for ticks that are due, of as many schedules as there are.

Most schedules are plain: their jobs need no key and nothing waits. Those are decided many at a time, in one transaction
and few statements. The others, and those of a transaction that failed, are decided one by one: what is wrong with one
leaves the rest alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django.db import Error, connections
from django.db.models import F, OuterRef, Q, QuerySet, Subquery

from jobqueue.db import fault_vendor, vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus, read_now
from jobqueue.db.dialect import GONE_KINDS
from jobqueue.db.retry import OF_THE_DATABASE
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Schedule, ScheduleTick
from jobqueue.producer.enqueueing import add_many
from jobqueue.producer.insert import NewJob
from jobqueue.schedules.deciding import (
    TICKS_MAX,
    Due,
    Fired,
    Outcome,
    Said,
    decide,
    due_ticks,
    job_of,
    runs,
    say_missed,
    set_next,
    write_and_tell,
)
from jobqueue.schedules.definitions import Definition, from_json

logger = logging.getLogger("jobqueue.worker")

#: a schedule that no worker has announced for so long does not fire
UNANNOUNCED_SECONDS = 600.0
#: a schedule that this process cannot calculate is tried again after this time, unless its definition changes
UNABLE_SECONDS = 60.0
#: a schedule whose key is in an open transaction is due again after this time, and later the longer that lasts
BUSY_SECONDS, BUSY_SECONDS_MAX = 1.0, 30.0
#: a worker that has not looked for so long was not there
PAUSE_SECONDS = 10.0
#: how long a look takes at most for each of the two kinds; the rest follows in the next one, which begins at once
_LOOK_SECONDS = 1.0
#: schedules of one transaction, and those that are read at a time
_TOGETHER, _PAGE = 100, 2000


class Candidate(NamedTuple):
    """A schedule that is due, as it was read without a lock."""

    look_at: datetime
    pk: int
    digest: str
    name: str


@dataclass(slots=True)
class Looks:
    """State that one worker keeps between its looks."""

    #: since when it looks without a pause, by the clock of the database
    since: datetime | None = None
    ended: float = -math.inf
    #: schedules that it cannot calculate, by digest, and until when it leaves them to others
    unable: dict[tuple[int, str], float] = field(default_factory=dict)
    #: schedules that have to be decided one by one
    alone: set[tuple[int, str]] = field(default_factory=set)

    def begin(self, using: str) -> None:
        """Note whether others may have missed ticks before this look."""
        if time.monotonic() - self.ended > PAUSE_SECONDS:
            self.since = read_now(using)

    def cannot(self, one: Candidate, error: Exception) -> None:
        """Leave a schedule to other workers for a while. Logged once for each definition."""
        first = one[1:3] not in self.unable
        self.unable[one[1:3]] = time.monotonic() + UNABLE_SECONDS
        log = logger.warning if first else logger.debug
        log(
            "schedule %r not fired by this worker: %s: %s. Other schedules go on, workers that can calculate it "
            "fire it, and this one tries again every %d s.", one.name, type(error).__name__, error, UNABLE_SECONDS,
        )  # fmt: skip


def fire_due(using: str, looks: Looks | None = None) -> Fired:
    """Decide ticks that are due; schedules that another worker has locked are left to it.

    `looks`: of the worker; without it this is a first look. A schedule that raises is left out, and the others go on;
    so are those whose key is in an open transaction, which are due again later. Raises what no schedule is to blame
    for, as a lost connection.
    """
    looks = looks or Looks()
    looks.begin(using)
    jobs, more, alone = 0, False, list[Candidate]()
    end = time.monotonic() + _LOOK_SECONDS
    for some in _due_now(looks, alone, using):
        if more := time.monotonic() > end:
            break
        added, left = _fire_together(some, looks, using)
        jobs, alone = jobs + added, alone + left
    one_by_one = _fire_alone(alone, looks, using)
    looks.ended = time.monotonic()
    return Fired(jobs + one_by_one.jobs, more or one_by_one.more)


def _due(using: str) -> QuerySet[Schedule]:
    announced = Q(source=Schedule.Source.ADMIN) | Q(announced_at__gte=UtcNowPlus(-UNANNOUNCED_SECONDS))
    return Schedule.objects.using(using).filter(announced, look_at__lte=UtcNow())


def _due_now(looks: Looks, alone: list[Candidate], using: str) -> Iterator[list[Candidate]]:
    """The schedules that are due, longest first, in portions of one transaction; the others are put into `alone`."""
    rows: Any = _due(using).order_by("look_at", "pk").values_list("look_at", "pk", "digest", "name")
    page = [Candidate(*row) for row in rows[:_PAGE]]
    while page:
        plain: list[Candidate] = []
        for one in page:
            if time.monotonic() >= looks.unable.get(one[1:3], 0.0):
                (alone if one[1:3] in looks.alone else plain).append(one)
        yield from (plain[at : at + _TOGETHER] for at in range(0, len(plain), _TOGETHER))
        last = page[-1]
        after = Q(look_at__gt=last.look_at) | Q(look_at=last.look_at, pk__gt=last.pk)
        page = [Candidate(*row) for row in rows.filter(after)[:_PAGE]] if len(page) == _PAGE else []


def _locked(numbers: Sequence[int], using: str) -> list[Any]:
    rows = _due(using).filter(pk__in=numbers).annotate(now=Selected(UtcNow()))
    return list(vendor(using).locks.lock_own(rows, skip_locked=True))


def _fire_together(some: list[Candidate], looks: Looks, using: str) -> tuple[int, list[Candidate]]:
    """Decide what is plain of some schedules; how many jobs were added, and the schedules that are left."""
    numbers = [one.pk for one in some]

    def work(said: Said) -> tuple[int, dict[int, bool]]:
        with vendor(using).transaction(connections[using]):
            return decide_together(_locked(numbers, using), using, said, looks.since)

    try:
        jobs, left = write_and_tell(work, using)
    except Exception as error:
        if _is_lost(error, using):
            raise
        # One of them is to blame, which shows when they are decided one by one.
        logger.debug("deciding %d schedules one by one: %r", len(some), error)
        return 0, some
    looks.alone.update(one[1:3] for one in some if left.get(one.pk))
    return jobs, [one for one in some if one.pk in left]


def _fire_alone(some: list[Candidate], looks: Looks, using: str) -> Fired:
    """Decide schedules one by one, for a while or until one has waited for a lock: then others go first."""
    jobs, more = 0, False
    end = time.monotonic() + _LOOK_SECONDS
    for number, one in enumerate(some):
        if time.monotonic() > end:
            return Fired(jobs, True)
        try:
            done = write_and_tell(partial(_fire, one.pk, looks.since, using), using)
        except DatabaseBusy as error:
            logger.debug("putting schedule %r off: %s", one.name, error)
            _put_off(one, using)
            return Fired(jobs, number + 1 < len(some))
        except OF_THE_DATABASE as error:
            if not _is_lost(error, using):
                _put_off(one, using)
            raise
        except Exception as error:
            looks.cannot(one, error)
        else:
            jobs, more = jobs + done.jobs, more or done.more
    return Fired(jobs, more)


def _fire(number: int, since: datetime | None, using: str, said: Said) -> Fired:
    with vendor(using).transaction(connections[using]):
        for row in _locked([number], using):
            done = decide(row, row.now, using, said, since)
            row.updated_at = UtcNow()
            row.save(using=using)
            return done
    return Fired()


def _put_off(one: Candidate, using: str) -> None:
    """Let other schedules go first, unless another worker has decided this one meanwhile."""
    rows = Schedule.objects.using(using).filter(pk=one.pk, look_at=one.look_at)
    try:
        with vendor(using).locks.timed_transaction(connections[using], BUSY_SECONDS):
            for tick, now in rows.annotate(now=Selected(UtcNow())).values_list("next_at", "now"):
                late = (now - (tick or one.look_at)).total_seconds()
                rows.update(look_at=UtcNowPlus(min(max(BUSY_SECONDS, late), BUSY_SECONDS_MAX)))
    except Error:
        return  # it stays due as it was


def _is_lost(error: Exception, using: str) -> bool:
    return isinstance(error, Error) and fault_vendor(using).error_kind(error) in GONE_KINDS


class _Plain(NamedTuple):
    """A locked row whose ticks can be decided together with those of others."""

    row: Any
    definition: Definition
    due: Due


def decide_together(rows: Sequence[Any], using: str, said: Said, since: datetime | None) -> tuple[int, dict[int, bool]]:
    """Decide the ticks of locked rows up to now and save the rows; how many jobs were added, and which rows are left.

    Left are those with overlap="queue" or with keys, each with True: they always will be. With False: those with many
    ticks, and those that cannot be read. If this raises, whoever calls it rolls back.
    """
    running = runs([row.last_job_id for row in rows], using)
    plain, left = [], dict[int, bool]()
    for row in rows:
        try:
            definition = from_json(row.definition)
            if (
                needs_care := row.waiting_at is not None
                or definition.overlap == "queue"
                or definition.template.has_keys
            ):
                left[row.pk] = needs_care
            elif len((due := due_ticks(row, definition, row.now, since)).ticks) > TICKS_MAX:
                left[row.pk] = False
            else:
                set_next(row, definition.timing.after(row.now))
                plain.append(_Plain(row, definition, due))
        except Exception:
            left[row.pk] = False  # which is told when it is decided by itself
    if plain:
        return _write(plain, running, using, said), left
    return 0, left


def _write(plain: Sequence[_Plain], running: set[int], using: str, said: Said) -> int:
    decided = _decided(plain, using)
    ticks: list[ScheduleTick] = []
    fired: list[tuple[ScheduleTick, NewJob]] = []
    for one in plain:
        row, overlaps = one.row, one.row.last_job_id in running
        if one.due.first is not None and (row.pk, one.due.first) not in decided:
            ticks.append(_tick(row, one.due.first, Outcome.MISSED, one.due.older))
            say_missed(row, one.due.first, one.due.older, using, said)
        for at in one.due.ticks:
            if (row.pk, at) in decided:
                continue
            if one.definition.overlap == "skip" and overlaps:
                ticks.append(_tick(row, at, Outcome.SKIPPED))
                continue
            fired.append((_tick(row, at, Outcome.FIRED), job_of(row, one.definition, at)))
            row.last_tick_at, overlaps = at, True
    for (tick, _), job_id in zip(fired, add_many([job for _, job in fired], using=using), strict=True):
        tick.job_id = job_id
    # Unique: a transaction that would fire a tick again fails as a whole.
    ScheduleTick.objects.using(using).bulk_create([*ticks, *(tick for tick, _ in fired)])
    _save([one.row for one in plain], {tick.schedule_id for tick, _ in fired}, using)
    return len(fired)


def _decided(plain: Sequence[_Plain], using: str) -> set[tuple[int, datetime]]:
    """Those of the ticks that are decided already, as after the clock of the server was set back."""
    found = [at for one in plain for at in (*one.due.ticks, one.due.first) if at is not None]
    if not found:
        return set()
    rows = ScheduleTick.objects.using(using).filter(schedule_id__in=[one.row.pk for one in plain])
    return {*rows.filter(tick_at__range=(min(found), max(found))).values_list("schedule_id", "tick_at")}


def _tick(row: Any, at: datetime, outcome: ScheduleTick.Outcome, ticks: int = 1) -> ScheduleTick:
    return ScheduleTick(schedule_id=row.pk, tick_at=at, outcome=outcome, ticks=ticks)


def _save(rows: Sequence[Any], fired: set[int], using: str) -> None:
    """Save what was decided. Schedules that tick at the same times are saved by one statement."""
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in rows:
        until = max(row.now, row.decided_until)
        alike[until, row.next_at, row.look_at, row.last_tick_at, row.pk in fired].append(row.pk)
    for (until, next_at, look_at, last_tick_at, has_fired), numbers in alike.items():
        tick = ScheduleTick.objects.using(using).filter(schedule_id=OuterRef("pk"), tick_at=last_tick_at)
        Schedule.objects.using(using).filter(pk__in=numbers).update(
            decided_until=until,
            next_at=next_at,
            look_at=look_at,
            last_tick_at=last_tick_at,
            last_job_id=Subquery(tick.values("job_id")[:1]) if has_fired else F("last_job_id"),
            updated_at=UtcNow(),
        )
