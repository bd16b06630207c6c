"""The figures that have a threshold, as they are now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from django.db.models import F, Q
from django.db.models.functions import Coalesce

from jobqueue.conf import Settings
from jobqueue.conf.alarms import EVERY_QUEUE, EXHAUSTED, LATE, REFUSED, SILENT, STALLED
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.db.dialect import ErrorKind
from jobqueue.lockstats.report import read_redone
from jobqueue.maintenance.worker_rows import HEARTBEATS_MISSED, RESOURCES, alive
from jobqueue.maintenance.worker_rows import SILENT as SILENT_REASON
from jobqueue.models import Worker
from jobqueue.schedules.listing import late
from jobqueue.stats.history import Recent, recent
from jobqueue.stats.queues import figures

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
    """Whether an alarm fires, and how many looks in a row have found the figure on the other side."""

    firing: bool = False
    looks: int = 0


def is_reached(name: str, value: float, threshold: float) -> bool:
    """Whether the figure is bad: at the threshold or above it; of a minimum, below it."""
    return value < threshold if name in MINIMA else value >= threshold


def is_over(name: str, value: float, threshold: float) -> bool:
    """Whether the figure is good again, clearly."""
    return value > END_ABOVE * threshold if name in MINIMA else value < END_BELOW * threshold


def after_look(before: Standing, name: str, value: float, threshold: float, *, in_a_row: bool) -> Standing:
    """How an alarm stands after a look. It changes with LOOKS looks in a row that say so.

    `in_a_row`: the last look was not too long ago to count. A figure between the two bounds begins and ends nothing.
    """
    if not (is_over if before.firing else is_reached)(name, value, threshold):
        return Standing(before.firing)
    looks = 1 + (before.looks if in_a_row else 0)
    return Standing(not before.firing) if looks >= LOOKS else Standing(before.firing, looks)
