"""One look: reads the figures, and writes which alarms begin and end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import connections
from django.db.models import QuerySet

from jobqueue.alarms import notices
from jobqueue.alarms.alarm import Alarm, alarm_of
from jobqueue.alarms.reading import RISING, Reading, Standing, after_look, is_reached, read
from jobqueue.alarms.recipients import keys_of
from jobqueue.conf import Settings, load
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.retry import retry_transient
from jobqueue.models import JobAlarm
from jobqueue.signals import alarm_changed

logger = logging.getLogger("jobqueue.alarms")

#: the name of a row that is no alarm: looked_at says when somebody looked last
LOOK = "look"
#: looks that are further apart are not in a row: nobody looked between them
IN_A_ROW_SECONDS = 300.0
#: nobody looks any more, if the last look is older
STALE_SECONDS = 300.0
#: if no look has read an alarm for this long, it has no threshold any more, and ends
UNWATCHED_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look changed."""

    begun: int = 0
    ended: int = 0


def look(settings: Settings, *, using: str) -> Looked:
    """Read every figure that has a threshold once, and begin and end alarms; some statements and one for each row.

    Only one process should look at a time; if two do, the later look of a row counts. Sends alarm_changed after each
    commit. Raises StatementTimeout.
    """
    now = read_now(using)
    rows = open_rows_of(using).defer("notices").order_by("quiet_at", "id")
    open_rows = {(row.queue, row.name): row for row in rows}
    keys = keys_of(settings.alarms.notify)
    changed: list[Alarm] = []
    for reading in read(settings, {queue for queue, _ in open_rows if queue}, using=using):
        row = open_rows.pop((reading.queue, reading.name), None)
        if row is not None or _may_begin(reading):
            changed += _written(reading, now, keys, using)
    for row in open_rows.values():
        if row.looked_at is None or row.looked_at < now - timedelta(seconds=UNWATCHED_SECONDS):
            changed += _written(Reading(row.queue, row.name, row.value, row.threshold), now, keys, using, watched=False)
    _note_look(now, using)
    for alarm in changed:
        send_after_commit(alarm_changed, JobAlarm, alarm=alarm, using=using)
    ended = sum(alarm.ended_at is not None for alarm in changed)
    return Looked(begun=len(changed) - ended, ended=ended)


def end_unwatched(settings: Settings, *, using: str) -> Looked:
    """End the alarms that lost their thresholds, where the settings have none at all: look() reads nothing then."""
    return look(settings, using=using) if open_rows_of(using).exists() else Looked()


def open_rows_of(using: str) -> QuerySet[JobAlarm]:
    """The alarms that fire, or may be about to."""
    return JobAlarm.objects.using(using).filter(quiet_at__isnull=True).exclude(name=LOOK)


def last_look_seconds(*, using: str) -> float | None:
    """How long ago the last look was, of whatever process; None if there was none."""
    rows = JobAlarm.objects.using(using).filter(queue="", name=LOOK).annotate(now=UtcNow())
    for now, looked_at in rows.values_list("now", "looked_at"):
        return None if looked_at is None else float(max(0.0, (now - looked_at).total_seconds()))
    return None


def is_stale(age: float | None) -> bool:
    """Whether the last look is too old, with the age from last_look_seconds(), although there are thresholds."""
    return load().alarms.watches and (age is None or age > STALE_SECONDS)


def _note_look(now: datetime, using: str) -> None:
    """Write that somebody has looked, into a row that is no alarm."""
    rows = JobAlarm.objects.using(using)
    mine = rows.filter(queue="", name=LOOK)
    if not retry_transient("housekeeping", lambda: mine.update(looked_at=now), using=using):
        new = JobAlarm(queue="", name=LOOK, looked_at=now)
        retry_transient("housekeeping", lambda: rows.bulk_create([new], ignore_conflicts=True), using=using)


def _may_begin(reading: Reading) -> bool:
    """Whether a figure without a row needs one."""
    return reading.value > 0 if reading.name == RISING else is_reached(reading.name, reading.value, reading.threshold)


def _written(reading: Reading, now: datetime, keys: list[str], using: str, *, watched: bool = True) -> list[Alarm]:
    work = partial(_write, reading, now, keys, using, watched)
    alarm = retry_transient("housekeeping", work, using=using)
    return [] if alarm is None else [alarm]


def _write(reading: Reading, now: datetime, keys: list[str], using: str, watched: bool) -> Alarm | None:
    """Write what one figure says into its row; the alarm if it began or ended. One transaction."""
    with vendor(using).transaction(connections[using]):
        row = _locked(reading, using)
        if row.looked_at is not None and row.looked_at >= now:
            return None
        before = row.firing
        _judge(row, reading, now, watched)
        row.looked_at = now
        row.quiet_at = None if _is_open(row) else (row.quiet_at or now)
        alarm = None
        if row.firing != before:
            row.since = now if row.firing else row.since
            row.ended_at = None if row.firing else now
            row.incident += row.firing
            alarm = alarm_of(row)
            _tell(row, alarm, now, keys)
        row.save(using=using)
    return alarm


def _locked(reading: Reading, using: str) -> JobAlarm:
    """The row of a figure, locked; a new one if there is none."""
    alarms = JobAlarm.objects.using(using)
    mine = alarms.select_for_update().filter(queue=reading.queue, name=reading.name)
    row = mine.first()
    if row is None:
        # Usually one process looks at a time. Two that look at once insert the same row.
        alarms.bulk_create([JobAlarm(queue=reading.queue, name=reading.name)], ignore_conflicts=True)
        row = mine.get()
    return row


def _judge(row: JobAlarm, reading: Reading, now: datetime, watched: bool) -> None:
    """Set value, threshold, and how the alarm stands."""
    in_a_row = row.looked_at is not None and now - row.looked_at <= timedelta(seconds=IN_A_ROW_SECONDS)
    row.threshold = reading.threshold
    if reading.about and is_reached(reading.name, reading.value, reading.threshold):
        # An alarm that is over still tells whom it was about.
        row.about = list(reading.about)
    row.value = _rising_seconds(row, reading.value, now, in_a_row) if reading.name == RISING else reading.value
    if not watched:
        row.firing, row.looks, row.last_age, row.rising_since = False, 0, None, None
        return
    standing = Standing(row.firing, row.looks)
    row.firing, row.looks = after_look(standing, row.name, row.value, row.threshold, in_a_row=in_a_row)


def _rising_seconds(row: JobAlarm, age: float, now: datetime, in_a_row: bool) -> float:
    """Seconds for which each look has found the oldest job older than the look before."""
    rises = in_a_row and row.last_age is not None and row.rising_since is not None and age > row.last_age
    row.last_age = age or None
    if not rises or row.rising_since is None:
        row.rising_since = now if age else None
        return 0.0
    return float((now - row.rising_since).total_seconds())


def _is_open(row: JobAlarm) -> bool:
    """Whether the next look must read the row."""
    return row.firing or row.looks > 0 or row.rising_since is not None


def _tell(row: JobAlarm, alarm: Alarm, now: datetime, keys: list[str]) -> None:
    """Add what is to be told."""
    pending = notices.decode(row.notices, row.queue, row.name)
    if keys:
        pending.append(notices.Notice.of(alarm, now, keys))
    for dropped in notices.drop_old(pending, now):
        logger.error("nobody was told: %s", dropped.alarm.text)
    row.notices, row.send_at = notices.encode(pending), notices.next_at(pending)
