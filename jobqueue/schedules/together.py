"""Decides the ticks of many schedules at once: a few statements for all of those whose ticks need no care."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import F, OuterRef, Subquery

from jobqueue.db.clock import UtcNow
from jobqueue.models import Schedule, ScheduleTick
from jobqueue.producer.enqueueing import add_many
from jobqueue.producer.insert import NewJob
from jobqueue.schedules.deciding import (
    TICKS_MAX,
    Due,
    Outcome,
    Said,
    due_ticks,
    job_of,
    runs,
    say_missed,
    set_next,
)
from jobqueue.schedules.definitions import Definition, from_json


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
