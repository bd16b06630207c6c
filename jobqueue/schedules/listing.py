"""The schedules as callers see them, and their next ticks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from jobqueue.base.payload import JSON, decode
from jobqueue.base.validation import check_int, did_you_mean
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus, read_now
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import InvalidValue, JobQueueError
from jobqueue.models import Schedule
from jobqueue.producer.insert import NewJob
from jobqueue.schedules.deciding import LATE_SECONDS
from jobqueue.schedules.declaring import check_name, declared
from jobqueue.schedules.definitions import Definition, from_json
from jobqueue.schedules.firing import BUSY_SECONDS_MAX
from jobqueue.schedules.timing import Timing, zone_of

PREVIEW_MAX = 1000


@dataclass(frozen=True, slots=True)
class Known:
    """A schedule. Instants are aware, in UTC."""

    name: str
    task: str
    queue: str
    args: list[JSON]
    kwargs: dict[str, JSON]
    cron: str | None
    every_seconds: float | None
    timezone: str
    words: str  # its expression in words
    missed: str
    missed_limit: int
    overlap: str
    jitter_seconds: float
    start_at: datetime | None
    end_at: datetime | None
    source: str  # "code", "settings" or "admin"
    edited: bool  # changed by hand: what workers announce is not in force
    edited_by: str
    differs: bool  # workers announce another definition than the one in force
    enabled: bool
    reason: str  # why it was disabled
    next_at: datetime | None  # None: it does not fire
    last_tick_at: datetime | None
    last_job_id: int | None
    retired_at: datetime | None  # no worker has announced it for 10 minutes
    late: bool = False  # a tick has been due for more than a minute and was not fired
    problem: str = ""  # why its definition cannot be read here; then what it says is empty


def known(*, using: str | None = None) -> list[Known]:
    """All schedules that workers have seen or that were made by hand, by name."""
    alias = alias_of(using)
    with explain_missing_table(alias):
        rows = Schedule.objects.using(alias).order_by("name").annotate(now=Selected(UtcNow()))
        return [_known(row) for row in rows]


def preview(name: str, n: int = 5, *, using: str | None = None) -> list[datetime]:
    """The next `n` (1 to 1000) ticks of a schedule, aware, in its time zone; fewer if it ends.

    Also of one that is disabled, as if it were not, and of one that only this process declares. Raises InvalidValue if
    there is none.
    """
    alias = alias_of(using)
    check_int(n, "n", 1, PREVIEW_MAX)
    timing = timing_of(check_name(name), alias)
    zone = zone_of(timing.timezone)
    return [tick.astimezone(zone) for tick in timing.first(n, read_now(alias))]


def find(name: str, using: str) -> Schedule:
    """The row of a schedule. Raises InvalidValue if there is none."""
    with explain_missing_table(using):
        row = Schedule.objects.using(using).filter(name=check_name(name)).first()
        if row is None:
            raise unknown(name, using)
        return row


def unknown(name: str, using: str) -> InvalidValue:
    """The error for a schedule that does not exist."""
    names = list(Schedule.objects.using(using).order_by("name").values_list("name", flat=True)[:1000])
    later = " It is declared here, and begins when a worker runs." if name in declared() else ""
    return InvalidValue(f"no schedule is called {name!r:.200}{did_you_mean(name, names)}. Nothing was written.{later}")


def timing_of(name: str, using: str) -> Timing:
    """When a schedule ticks, also one that only this process declares. Raises InvalidValue if there is none."""
    with explain_missing_table(using):
        row = Schedule.objects.using(using).filter(name=name).first()
        if row is not None:
            return from_json(row.definition).timing
        if name in declared():
            return declared()[name].terms.timing
        raise unknown(name, using)


def is_late(row: Any, now: datetime) -> bool:
    """Return whether a tick of a schedule has been due for longer than workers need."""
    since = due_since(row.next_at, row.look_at)
    return bool(row.enabled and row.retired_at is None and since and since < now - timedelta(seconds=LATE_SECONDS))


def due_since(next_at: datetime | None, look_at: datetime | None) -> datetime | None:
    """Since when a worker should have looked at a schedule with these columns. One that is put off keeps its tick."""
    return min((at for at in (next_at, look_at) if at is not None), default=None)


def late_names(using: str, most: int) -> tuple[list[str], float]:
    """The names of schedules for which is_late() is true, longest first; and for how long the first has been due."""
    rows = late(using).annotate(now=Selected(UtcNow())).order_by("look_at", "pk")
    found = rows.values_list("name", "next_at", "look_at", "now")[:most]
    ages = {name: (now - (due_since(next_at, look_at) or now)).total_seconds() for name, next_at, look_at, now in found}
    names = sorted(ages, key=lambda name: -ages[name])
    return names, ages[names[0]] if names else 0.0


def late(using: str) -> QuerySet[Schedule]:
    """The schedules for which is_late() is true."""
    rows = Schedule.objects.using(using).filter(enabled=True, retired_at__isnull=True)
    long_ago = UtcNowPlus(-LATE_SECONDS)
    # One that is put off is looked at soon, and its tick stays.
    soon = rows.filter(look_at__lt=UtcNowPlus(BUSY_SECONDS_MAX))
    return soon.filter(Q(next_at__lt=long_ago) | Q(look_at__lt=long_ago))


def _known(row: Any) -> Known:
    problem = ""
    try:
        definition = from_json(row.definition)
        words = definition.timing.words
    except JobQueueError as error:
        # The others can be read all the same.
        definition, problem = definition_of(row), " ".join(str(error).split())
        words = definition.timing.cron or ""
    timing = definition.timing
    args, kwargs = arguments_of(definition)
    same = {name: getattr(timing, name) for name in ("cron", "every_seconds", "timezone", "start_at", "end_at")}
    same |= {name: getattr(definition, name) for name in ("missed", "missed_limit", "overlap", "jitter_seconds")}
    names = ("name", "task", "source", "edited", "edited_by", "enabled", "reason", "next_at", "last_tick_at")
    same |= {name: getattr(row, name) for name in (*names, "last_job_id", "retired_at")}
    return Known(
        queue=definition.template.queue,
        args=args,
        kwargs=kwargs,
        words=words,
        late=is_late(row, row.now),
        problem=problem,
        differs=bool(row.announced_digest) and row.announced_digest != row.digest,
        **same,
    )


def definition_of(row: Any) -> Definition:
    """The definition of a schedule; an empty one if it cannot be read."""
    try:
        return from_json(row.definition)
    except InvalidValue:
        empty = NewJob(queue="", payload=Encoded('{"args": [], "kwargs": {}}'))
        return Definition(Timing(timezone=""), empty, missed="", missed_limit=0, overlap="")


def arguments_of(definition: Definition) -> tuple[list[JSON], dict[str, JSON]]:
    """The arguments of the jobs."""
    payload = decode(definition.template.payload)
    return payload["args"], payload["kwargs"]
