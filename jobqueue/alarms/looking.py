"""Reads the figures that have thresholds, and writes which alarms begin and end.

One process of all looks, every INTERVAL_SECONDS. It does so in a thread, which also tells recipients, so that its other
work does not wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.db import Error, connections
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce

from jobqueue import signals
from jobqueue.alarms import Alarm, alarm_of, delivery
from jobqueue.alarms.delivery import is_anything_due, keys_of, tell_due
from jobqueue.conf import Settings, load
from jobqueue.conf.alarms import EVERY_QUEUE, EXHAUSTED, LATE, REFUSED, SILENT, STALLED
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import UtcNow, UtcNowPlus, read_now
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.retry import retry_transient
from jobqueue.db.time_limit import lock_limit
from jobqueue.exceptions import DatabaseBusy, StatementTimeout
from jobqueue.locks.lease import takes_turn
from jobqueue.lockstats.report import read_redone
from jobqueue.maintenance.worker_rows import HEARTBEATS_MISSED, RESOURCES, alive
from jobqueue.maintenance.worker_rows import SILENT as SILENT_REASON
from jobqueue.models import JobAlarm, Worker
from jobqueue.schedules.listing import late
from jobqueue.signals import Dispatch, alarm_changed
from jobqueue.stats.history import Recent, recent
from jobqueue.stats.live import figures

#: the figure that is computed from look to look
RISING = "rising_age_seconds"
#: the share of runs that fail; of fewer runs it is no figure to be woken by
RATE, RUNS_MIN = "error_rate", 10
#: how long the figures of all queues may take: a thread of its own reads them, and 100,000 queues are many
READ_SECONDS = 60.0
#: a worker that stays silent counts for so long after it was marked as such
SILENT_SECONDS = 900.0
#: connections that were refused count for so long; processes write them once a minute, and workers every ten seconds
REFUSED_SECONDS = 300.0
#: silent workers are counted up to this, and those with troubles
SILENT_MAX = TROUBLED_MAX = 100_000
#: schedules that are late are counted up to this
LATE_MAX = 100_000
#: workers or schedules that an alarm names
ABOUT_MAX = 10
#: looks in a row that decide
LOOKS = 2
#: an alarm ends when the figure is below this share of its threshold; of a minimum, above this
END_BELOW, END_ABOVE = 0.8, 1.25
#: figures whose threshold is a minimum
MINIMA = frozenset({"throughput_per_minute"})


class Reading(NamedTuple):
    """One figure. That of RISING is the age of the oldest job; looking.py makes of it how long it has grown."""

    queue: str
    name: str
    value: float
    threshold: float
    about: tuple[str, ...] = ()  # the workers or schedules that it counts, ABOUT_MAX of them


def read(settings: Settings, known: Collection[str], *, using: str) -> list[Reading]:
    """The figures of queues and workers that have a threshold. `known`: queues whose alarms fire, or may be about to.

    Raises StatementTimeout.
    """
    return [*_of_queues(settings, known, using), *_of_workers(settings, using)]


def _of_queues(settings: Settings, known: Collection[str], using: str) -> Iterator[Reading]:
    alarms = settings.alarms
    if not any(alarms.queues.values()):
        return
    everywhere = bool(alarms.queues.get(EVERY_QUEUE))
    named = {queue for queue, thresholds in alarms.queues.items() if thresholds and queue != EVERY_QUEUE}
    there = {queue for queue in known if alarms.of_queue(queue)}
    for stats in figures(named | there, everywhere=everywhere, using=using, seconds=READ_SECONDS):
        for name, threshold in alarms.of_queue(stats.queue).items():
            # A queue without an entry of its own and without jobs is left out: nothing can end there, so 0 is no alarm.
            has_jobs = stats.ready or stats.scheduled or stats.running
            if name in MINIMA and stats.queue not in named and not has_jobs:
                continue
            value = stats.oldest_age_seconds if name == RISING else getattr(stats, name)
            if name == RATE and value >= threshold and _runs(stats.queue, using) < RUNS_MIN:
                value = 0.0
            yield Reading(stats.queue, name, float(value), threshold)


def _runs(queue: str, using: str) -> int:
    """How many runs of the last minutes the share of errors is of."""
    return recent(read_now(using), using, [queue]).get(queue, Recent()).runs


def _of_workers(settings: Settings, using: str) -> Iterator[Reading]:
    thresholds, seconds = settings.alarms.workers, settings.worker_silent_seconds
    if SILENT in thresholds:
        yield _counted(SILENT, _silent_workers(seconds, using), thresholds[SILENT])
    if STALLED in thresholds or EXHAUSTED in thresholds:
        rows = alive(seconds, using=using).filter(troubles__isnull=False).order_by("name")
        found = [
            (_worker(name, host), {*troubles} if isinstance(troubles, dict) else set())
            for name, host, troubles in rows.values_list("name", "host", "troubles")[:TROUBLED_MAX]
        ]
        for alarm, of_it in ((STALLED, {"stalled"}), (EXHAUSTED, {*RESOURCES})):
            if alarm in thresholds:
                yield _counted(alarm, [worker for worker, troubles in found if troubles & of_it], thresholds[alarm])
    if REFUSED in thresholds:
        yield Reading("", REFUSED, float(_refused_connections(using)), thresholds[REFUSED])
    if LATE in thresholds:
        # The latest first.
        names = late(using).order_by("next_at", "name").values_list("name", flat=True)
        yield _counted(LATE, list(names[:LATE_MAX]), thresholds[LATE])


def _counted(alarm: str, names: Sequence[str], threshold: float) -> Reading:
    return Reading("", alarm, float(len(names)), threshold, tuple(names[:ABOUT_MAX]))


def _worker(name: str, host: str) -> str:
    """A worker with its host; the names that workers choose themselves begin with it."""
    return name if host in name else f"{name} on {host}"


def _refused_connections(using: str) -> int:
    """How often a process of the queue got no connection in the last REFUSED_SECONDS."""
    found = read_redone(seconds=REFUSED_SECONDS, using=using)
    return sum(one.redone + one.given_up for one in found if one.error == ErrorKind.NO_CONNECTION)


def _silent_workers(silent_seconds: float, using: str) -> list[str]:
    """Workers without a heartbeat: those that nobody has marked yet, and those marked in the last SILENT_SECONDS."""
    workers = Worker.objects.using(using).order_by()
    own = UtcNowPlus(Coalesce(F("heartbeat_seconds"), 0.0) * -float(HEARTBEATS_MISSED))
    unmarked = workers.filter(Q(heartbeat_at__lt=own), stopped_at__isnull=True)
    unmarked = unmarked.filter(heartbeat_at__lt=UtcNowPlus(-silent_seconds))
    marked = workers.filter(stopped_at__gte=UtcNowPlus(-SILENT_SECONDS), stop_reason=SILENT_REASON)
    return [_worker(*row) for rows in (unmarked, marked) for row in rows.values_list("name", "host")[:SILENT_MAX]]


class Standing(NamedTuple):
    """The state of an alarm, and how many looks in a row have found the figure on the other side."""

    firing: bool = False
    looks: int = 0


def is_reached(name: str, value: float, threshold: float) -> bool:
    """Return whether the figure is bad: at the threshold or above it; of a minimum, below it."""
    return value < threshold if name in MINIMA else value >= threshold


def is_over(name: str, value: float, threshold: float) -> bool:
    """Return whether the figure is good again, clearly."""
    return value > END_ABOVE * threshold if name in MINIMA else value < END_BELOW * threshold


def after_look(before: Standing, name: str, value: float, threshold: float, *, in_a_row: bool) -> Standing:
    """How an alarm stands after a look. It changes with LOOKS looks in a row that say so.

    `in_a_row`: the last look was not too long ago to count. A figure between the two bounds begins and ends nothing.
    """
    if not (is_over if before.firing else is_reached)(name, value, threshold):
        return Standing(before.firing)
    looks = 1 + (before.looks if in_a_row else 0)
    return Standing(not before.firing) if looks >= LOOKS else Standing(before.firing, looks)


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
    """The changes of one look."""

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
    """Return whether the last look is too old, with the age from last_look_seconds(), although there are thresholds."""
    return load().alarms.watches and (age is None or age > STALE_SECONDS)


def _note_look(now: datetime, using: str) -> None:
    """Write that somebody has looked, into a row that is no alarm."""
    rows = JobAlarm.objects.using(using)
    mine = rows.filter(queue="", name=LOOK)
    if not retry_transient("housekeeping", lambda: mine.update(looked_at=now), using=using):
        new = JobAlarm(queue="", name=LOOK, looked_at=now)
        insert = partial(vendor(using).insert_missing, connections[using], [new])
        retry_transient("housekeeping", insert, using=using)


def _may_begin(reading: Reading) -> bool:
    """Return whether a figure without a row needs one."""
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
        vendor(using).insert_missing(connections[using], [JobAlarm(queue=reading.queue, name=reading.name)])
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
    """Return whether the next look must read the row."""
    return row.firing or row.looks > 0 or row.rising_since is not None


def _tell(row: JobAlarm, alarm: Alarm, now: datetime, keys: list[str]) -> None:
    """Add what is to be told."""
    pending = delivery.decode(row.notices, row.queue, row.name)
    if keys:
        pending.append(delivery.Notice.of(alarm, now, keys))
    for dropped in delivery.drop_old(pending, now):
        logger.error("not sent, too many notices waited: %s", dropped.alarm.text)
    row.notices, row.send_at = delivery.encode(pending), delivery.next_at(pending)


#: between two looks of all processes together, nearly
INTERVAL_SECONDS = 15.0
#: the lease lock of the process that looks, and how long it stays
TURN, TURN_SECONDS = "jobqueue: alarms", 0.75 * INTERVAL_SECONDS


class AlarmWatch:
    """One process's part. Any number of processes may call run_once() every INTERVAL_SECONDS: one of them looks."""

    def __init__(self, dispatch: Dispatch | None = None) -> None:
        self._dispatch = dispatch
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        # Soon after a change of the settings, the workers that know the old ones may still be there.
        self._unwatched_at = time.monotonic() + UNWATCHED_SECONDS

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Start a thread that looks, if it is this process's turn, and tells what is due; two or three statements."""
        if self._ending.is_set() or (self._thread is not None and self._thread.is_alive()):
            return Counter()
        if not settings.alarms.watches:
            self._end_unwatched(settings, using)
            return Counter()
        looks = takes_turn(TURN, TURN_SECONDS, using)
        if not looks and not is_anything_due(using=using):
            return Counter()
        self._thread = threading.Thread(target=self._work, args=(settings, using, looks), name="alarms", daemon=True)
        self._thread.start()
        return Counter(looks=int(looks), tells=1)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for the end of what run_once() began."""
        if self._thread is not None:
            self._thread.join(seconds)

    def end(self, seconds: float) -> None:
        """Begin nothing any more, and wait up to `seconds` for the recipient that is being told."""
        self._ending.set()
        self.wait(seconds)

    def _end_unwatched(self, settings: Settings, using: str) -> None:
        if time.monotonic() >= self._unwatched_at:
            self._unwatched_at = time.monotonic() + UNWATCHED_SECONDS
            end_unwatched(settings, using=using)

    def _work(self, settings: Settings, using: str, looks: bool) -> None:
        signals.dispatch_via(self._dispatch)
        try:
            with lock_limit(using=using):
                if looks:
                    look(settings, using=using)
                tell_due(settings, using=using, ending=self._ending.is_set)
        except (Error, DatabaseBusy, StatementTimeout) as error:
            logger.warning("could not check the alarms: %s; next check in %g s", error, INTERVAL_SECONDS)
        except Exception:
            logger.exception("unexpected error while checking the alarms; next check in %g s", INTERVAL_SECONDS)
        finally:
            connections[using].close()
