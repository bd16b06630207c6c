"""Fires schedules: the job of a tick and the row of the tick are written in one transaction, once in all workers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Q, QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InvalidValue, JobQueueError, QueueFull, WrongSettings
from jobqueue.models import Job, Schedule, ScheduleTick
from jobqueue.producer.enqueueing import add
from jobqueue.schedules.definitions import Definition, from_json
from jobqueue.signals import schedule_missed, send

logger = logging.getLogger("jobqueue.worker")

Outcome = ScheduleTick.Outcome
#: a schedule that no worker has announced for so long does not fire
UNANNOUNCED_SECONDS = 600.0
#: with missed="skip": a tick that is decided later than this is missed
LATE_SECONDS = 60.0
#: between two looks at a job whose end a tick waits for
WAITING_SECONDS = 1.0
#: schedules of one pass; ticks of one transaction, so that it stays short; the rest follows in the next ones
_SCHEDULES_MAX, _TICKS_MAX = 100, 50


class Fired(NamedTuple):
    """What one pass did."""

    jobs: int = 0
    more: bool = False  # ticks that are due were left for the next pass


def fire_due(using: str) -> Fired:
    """Decide the ticks that are due, each schedule in its own transaction; one that another worker has is left out."""
    # Ordered as the index has them: the one that has been due for longest is first.
    due = list(_due(using).order_by("look_at").values_list("pk", flat=True)[:_SCHEDULES_MAX])
    done = [retry_transient("schedule", partial(_fire, number, using), using=using) for number in due]
    return Fired(sum(one.jobs for one in done), any(one.more for one in done))


def _due(using: str) -> QuerySet[Schedule]:
    announced = Q(source=Schedule.Source.ADMIN) | Q(announced_at__gte=UtcNowPlus(-UNANNOUNCED_SECONDS))
    return Schedule.objects.using(using).filter(announced, look_at__lte=UtcNow())


def _fire(number: int, using: str) -> Fired:
    with vendor(using).transaction(connections[using]):
        rows = _due(using).filter(pk=number).annotate(now=Selected(UtcNow()))
        row: Any = vendor(using).locks.lock_own(rows, skip_locked=True).first()
        if row is None:
            return Fired()
        try:
            done = decide(row, row.now, using)
        except (InvalidValue, WrongSettings) as error:
            logger.warning("the schedule %r is not fired by this worker: %s", row.name, error)
            return Fired()
        row.updated_at = UtcNow()
        row.save(using=using)
        return done


def decide(row: Any, until: datetime, using: str) -> Fired:
    """Decide the ticks of a locked row up to an instant; its columns are set and not saved.

    `row.now` is the time of the database. Raises InvalidValue for a definition that cannot be read.
    """
    definition = from_json(row.definition)
    jobs = _fire_waiting(row, definition, using)
    most = definition.missed_limit if definition.missed == "all" else 1
    ticks, older = definition.timing.newest(most, row.decided_until, until)
    first = definition.timing.after(row.decided_until)
    late = row.now - timedelta(seconds=LATE_SECONDS)
    if definition.missed == "skip" and ticks and ticks[0] < late:
        ticks, older = [], older + 1
    if older and first is not None:
        _miss(row, first, older, using)
    decided = _decided(row, ticks, using)
    for tick in ticks[:_TICKS_MAX]:
        if tick not in decided:
            jobs += _fire_tick(row, definition, tick, using)
    more = len(ticks) > _TICKS_MAX
    row.decided_until = ticks[_TICKS_MAX - 1] if more else max(until, row.decided_until)
    set_next(row, definition.timing.after(row.decided_until))
    return Fired(jobs, more)


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


def _fire_tick(row: Any, definition: Definition, tick: datetime, using: str) -> int:
    """Decide one tick; how many jobs were added."""
    if definition.overlap != "allow" and (row.waiting_at is not None or _runs(row, using)):
        if definition.overlap == "skip":
            _record(row, tick, Outcome.SKIPPED, using)
        else:
            _let_wait(row, definition, tick, using)
        return 0
    job_id = _add(row, definition, tick, using)
    _record(row, tick, Outcome.FIRED if job_id else Outcome.REFUSED, using, job_id=job_id)
    return 1 if job_id else 0


def _runs(row: Any, using: str) -> bool:
    """Whether the job of the tick before has not ended. One that was deleted has."""
    live = Q(status=Job.Status.READY) | Q(status=Job.Status.PROCESSING)
    return row.last_job_id is not None and Job.objects.using(using).filter(live, pk=row.last_job_id).exists()


def _add(row: Any, definition: Definition, tick: datetime, using: str) -> int | None:
    """Add the job of a tick; its id, or None if it was refused, which is logged."""
    run_at = tick + timedelta(seconds=jitter_of(str(row.name), tick, definition.jitter_seconds))
    try:
        job_id = add(definition.job(tick, run_at if run_at > row.now else None, row.now), using=using)
    except DatabaseBusy:
        raise  # the next pass tries again
    except QueueFull as error:
        logger.warning("the schedule %r misses its tick of %s: %s", row.name, tick.isoformat(), error)
        send(schedule_missed, Schedule, name=row.name, tick=tick, ticks=1, reason="full", using=using)
        return None
    except JobQueueError as error:
        logger.error("the schedule %r misses its tick of %s: %s", row.name, tick.isoformat(), error)
        send(schedule_missed, Schedule, name=row.name, tick=tick, ticks=1, reason="refused", using=using)
        return None
    row.last_tick_at, row.last_job_id = tick, job_id
    return job_id


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
        send(schedule_missed, Schedule, name=row.name, tick=missed, ticks=1, reason="overlap", using=using)


def _fire_waiting(row: Any, definition: Definition, using: str) -> int:
    """Add the job of the oldest tick that waits, if the job before it has ended; how many jobs were added."""
    if row.waiting_at is None or _runs(row, using):
        return 0
    waiting = iter(list(_waiting(row, using)[:2]))
    jobs = 0
    for tick in waiting:
        job_id = _add(row, definition, tick.tick_at, using)
        tick.outcome, tick.job_id = (Outcome.FIRED if job_id else Outcome.REFUSED), job_id
        tick.save(using=using, update_fields=["outcome", "job_id"])
        jobs += 1 if job_id else 0
        break
    row.waiting_at = _next_waiting(waiting)
    return jobs


def _next_waiting(waiting: Iterator[ScheduleTick]) -> datetime | None:
    following = next(waiting, None)
    return None if following is None else following.tick_at


def _waiting(row: Any, using: str) -> QuerySet[ScheduleTick]:
    rows = ScheduleTick.objects.using(using).filter(schedule_id=row.pk, tick_at__gte=row.waiting_at)
    return rows.filter(outcome=Outcome.WAITING).order_by("tick_at")


def _miss(row: Any, first: datetime, ticks: int, using: str) -> None:
    """Record ticks that are not fired because it is too late, under the first one of them."""
    if first in _decided(row, [first], using):
        return
    _record(row, first, Outcome.MISSED, using, ticks=ticks)
    logger.warning("the schedule %r missed %d ticks since %s: no worker ran", row.name, ticks, first.isoformat())
    send(schedule_missed, Schedule, name=row.name, tick=first, ticks=ticks, reason="late", using=using)


def _record(
    row: Any, tick: datetime, outcome: ScheduleTick.Outcome, using: str, *, ticks: int = 1, job_id: int | None = None
) -> None:
    # Unique: a transaction that would fire a tick again fails as a whole.
    ScheduleTick(schedule_id=row.pk, tick_at=tick, outcome=outcome, ticks=ticks, job_id=job_id).save(
        using=using, force_insert=True
    )
