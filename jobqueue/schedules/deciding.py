"""Decides the ticks of one schedule: the job of a tick and the row of the tick are written in one transaction."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from django.db.models import QuerySet

from jobqueue.db.callers_transaction import after_commit, send_after_commit
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, JobQueueError, QueueFull
from jobqueue.models import Job, Schedule, ScheduleTick
from jobqueue.producer.enqueueing import add
from jobqueue.producer.insert import NewJob
from jobqueue.schedules.definitions import Definition, from_json
from jobqueue.signals import held_back, schedule_missed

T = TypeVar("T")
logger = logging.getLogger("jobqueue.worker")

Outcome = ScheduleTick.Outcome
#: with missed="skip": a tick that is decided later than this is missed, unless a worker that looked was behind
LATE_SECONDS = 60.0
#: between two looks at a job whose end a tick waits for
WAITING_SECONDS = 1.0
#: how long a tick waits for the transaction that has used its key; MySQL counts whole seconds
KEY_WAIT_SECONDS = 0.5
#: ticks of one transaction, so that it stays short; the rest follows in the next ones
TICKS_MAX = 50
_MISSES = "schedule %r missed its tick of %s: %s"
_LATE = "schedule %r missed %d ticks since %s: no worker was there in time"
_HELD = (
    "job {}, which has ended, still holds the dedupe key, so no job was added. Lower DEDUPE_SECONDS or unique_seconds, "
    'or use unique="unfinished", which frees the key when the job ends.'
)


class Fired(NamedTuple):
    """The result of a pass over due schedules."""

    jobs: int = 0
    more: bool = False  # ticks that are due were left for later


class Due(NamedTuple):
    """The ticks of a schedule that are due: those that are to fire, and how many older ones are missed."""

    ticks: list[datetime]
    older: int
    first: datetime | None  # the first of the older ones


#: lines of the log about what a transaction has written, for after its commit
Said: TypeAlias = list[Callable[[], None]]


def write_and_tell(work: Callable[[Said], T], using: str) -> T:
    """retry_transient() of a whole transaction; its log lines and signals follow its commit."""

    def once() -> tuple[T, Said, Callable[[], None]]:
        said: Said = []
        with held_back() as deliver:
            done = work(said)
        return done, said, deliver

    done, said, deliver = retry_transient("schedule", once, using=using)
    for say in said:
        after_commit(say, using)
    deliver()
    return done


def decide(row: Any, until: datetime, using: str, said: Said, since: datetime | None = None) -> Fired:
    """Decide the ticks of a locked row up to an instant; its columns are set and not saved.

    `row.now` is the time of the database. `since`: a worker has looked without a pause since then. What is to be logged
    after the commit is put into `said`. Raises InvalidValue for a definition that cannot be read, and DatabaseBusy.
    """
    definition = from_json(row.definition)
    jobs = _fire_waiting(row, definition, using, said)
    due = due_ticks(row, definition, until, since)
    if due.first is not None:
        _miss(row, due.first, due.older, using, said)
    decided = _decided(row, due.ticks, using)
    for tick in due.ticks[:TICKS_MAX]:
        if tick not in decided:
            jobs += _fire_tick(row, definition, tick, using, said)
    more = len(due.ticks) > TICKS_MAX
    row.decided_until = due.ticks[TICKS_MAX - 1] if more else max(until, row.decided_until)
    set_next(row, definition.timing.after(row.decided_until))
    return Fired(jobs, more)


def due_ticks(row: Any, definition: Definition, until: datetime, since: datetime | None) -> Due:
    """Which ticks of a locked row fire by its policy for those at which no worker has looked."""
    ticks, older = definition.timing.newest(definition.missed_limit, row.decided_until, until)
    if definition.missed != "all" and ticks:
        # A worker that is behind is no reason to miss a tick: those since its first look are in time.
        in_time = row.now if since is None else since
        fire = sum(tick >= in_time for tick in ticks)
        late = min(in_time, row.now - timedelta(seconds=LATE_SECONDS))
        if not fire and (definition.missed == "latest" or ticks[-1] >= late):
            fire = 1
        ticks, older = ticks[len(ticks) - fire :], older + len(ticks) - fire
    return Due(ticks, older, definition.timing.after(row.decided_until) if older else None)


def set_next(row: Any, tick: datetime | None) -> None:
    """Set the next tick of a schedule, and when it is looked at; neither if it does not fire."""
    fires = row.enabled and row.retired_at is None
    row.next_at = row.look_at = tick if fires else None
    if fires and row.waiting_at is not None:
        soon = row.now + timedelta(seconds=WAITING_SECONDS)
        row.look_at = soon if tick is None else min(tick, soon)


def _decided(row: Any, ticks: list[datetime], using: str) -> set[datetime]:
    """Those of the ticks that are decided already, as after the clock of the server was set back."""
    if not ticks:
        return set()
    rows = ScheduleTick.objects.using(using).filter(schedule_id=row.pk, tick_at__range=(ticks[0], ticks[-1]))
    return {*rows.values_list("tick_at", flat=True)}


def _fire_tick(row: Any, definition: Definition, tick: datetime, using: str, said: Said) -> int:
    """Decide one tick; how many jobs were added."""
    if definition.overlap != "allow" and (row.waiting_at is not None or runs([row.last_job_id], using)):
        if definition.overlap == "skip":
            _record(row, tick, Outcome.SKIPPED, using)
        else:
            _let_wait(row, definition, tick, using)
        return 0
    outcome, job_id = _add(row, definition, tick, using, said)
    _record(row, tick, outcome, using, job_id=job_id)
    return 1 if outcome == Outcome.FIRED else 0


def runs(job_ids: Iterable[int | None], using: str) -> set[int]:
    """Those of the jobs that have not ended. One that was deleted has."""
    given = [job_id for job_id in job_ids if job_id is not None]
    live = Job.objects.using(using).filter(pk__in=given, status__in=(Job.Status.READY, Job.Status.PROCESSING))
    return {*live.values_list("pk", flat=True)} if given else set()


def _add(
    row: Any, definition: Definition, tick: datetime, using: str, said: Said
) -> tuple[ScheduleTick.Outcome, int | None]:
    """Add the job of a tick; what became of the tick, and the job that it has or that holds its key.

    Raises DatabaseBusy if another transaction has used its key and stays open: schedules wait for nobody.
    """
    added: dict[int, NewJob] = {}
    try:
        job_id = add(job_of(row, definition, tick), using=using, added=added, key_wait_seconds=KEY_WAIT_SECONDS)
    except DatabaseBusy:
        raise  # the next pass tries again
    except JobQueueError as error:
        full = isinstance(error, QueueFull)
        level = logging.WARNING if full else logging.ERROR
        said.append(partial(logger.log, level, _MISSES, row.name, tick.isoformat(), str(error)))
        _send_missed(row, tick, 1, "full" if full else "refused", using)
        return Outcome.REFUSED, None
    if job_id not in added and definition.template.replaces and runs([job_id], using):
        return Outcome.FIRED, job_id  # the waiting job has the arguments of this tick now
    if job_id not in added:
        if not runs([job_id], using):
            said.append(partial(logger.warning, _MISSES, row.name, tick.isoformat(), _HELD.format(job_id)))
            _send_missed(row, tick, 1, "duplicate", using)
        return Outcome.SKIPPED, job_id
    row.last_tick_at, row.last_job_id = tick, job_id
    return Outcome.FIRED, job_id


def job_of(row: Any, definition: Definition, tick: datetime) -> NewJob:
    """The job of a tick of a locked row."""
    run_at = tick + timedelta(seconds=jitter_of(str(row.name), tick, definition.jitter_seconds))
    return definition.job(tick, run_at if run_at > row.now else None, row.now)


def jitter_of(name: str, tick: datetime, most_seconds: float) -> float:
    """How much later the job of a tick is due: the same number of seconds in every process."""
    if not most_seconds:
        return 0.0
    digest = hashlib.sha256(f"{name}\0{tick.isoformat()}".encode()).digest()
    return most_seconds * int.from_bytes(digest[:8], "big") / 2**64


def _let_wait(row: Any, definition: Definition, tick: datetime, using: str) -> None:
    _record(row, tick, Outcome.WAITING, using)
    row.waiting_at = row.waiting_at or tick
    waiting = list(_waiting(row, using).values_list("pk", "tick_at"))
    for number, missed in waiting[: max(0, len(waiting) - definition.missed_limit)]:
        ScheduleTick.objects.using(using).filter(pk=number).update(outcome=Outcome.MISSED)
        _send_missed(row, missed, 1, "overlap", using)


def _fire_waiting(row: Any, definition: Definition, using: str, said: Said) -> int:
    """Add the job of the oldest tick that waits, if the job before it has ended; how many jobs were added."""
    if row.waiting_at is None or runs([row.last_job_id], using):
        return 0
    waiting = list(_waiting(row, using)[:2])
    jobs = 0
    for tick in waiting[:1]:
        tick.outcome, tick.job_id = _add(row, definition, tick.tick_at, using, said)
        tick.save(using=using, update_fields=["outcome", "job_id"])
        jobs += tick.outcome == Outcome.FIRED
    row.waiting_at = waiting[1].tick_at if len(waiting) > 1 else None
    return jobs


def _waiting(row: Any, using: str) -> QuerySet[ScheduleTick]:
    rows = ScheduleTick.objects.using(using).filter(schedule_id=row.pk, tick_at__gte=row.waiting_at)
    return rows.filter(outcome=Outcome.WAITING).order_by("tick_at")


def begin_anew(row: Any, using: str) -> None:
    """Let a locked row that did not fire go on from now: its ticks of meanwhile, and those that wait, were not wanted.

    The caller calls set_next() and saves the row.
    """
    if row.waiting_at is not None:
        _waiting(row, using).update(outcome=Outcome.SKIPPED)
    row.waiting_at, row.decided_until = None, row.now


def _miss(row: Any, first: datetime, ticks: int, using: str, said: Said) -> None:
    """Record ticks that are not fired because it is too late, under the first one of them."""
    if first in _decided(row, [first], using):
        return
    _record(row, first, Outcome.MISSED, using, ticks=ticks)
    say_missed(row, first, ticks, using, said)


def say_missed(row: Any, first: datetime, ticks: int, using: str, said: Said) -> None:
    """Log and signal ticks that were too late to fire."""
    said.append(partial(logger.warning, _LATE, row.name, ticks, first.isoformat()))
    _send_missed(row, first, ticks, "late", using)


def _send_missed(row: Any, tick: datetime, ticks: int, reason: str, using: str) -> None:
    facts = {"name": row.name, "tick": tick, "ticks": ticks, "reason": reason}
    send_after_commit(schedule_missed, Schedule, using=using, **facts)


def _record(
    row: Any, tick: datetime, outcome: ScheduleTick.Outcome, using: str, *, ticks: int = 1, job_id: int | None = None
) -> None:
    # Unique: a transaction that would fire a tick again fails as a whole.
    ScheduleTick(schedule_id=row.pk, tick_at=tick, outcome=outcome, ticks=ticks, job_id=job_id).save(
        using=using, force_insert=True
    )
