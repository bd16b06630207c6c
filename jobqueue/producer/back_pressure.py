"""Back-pressure: what producers meet in a queue that is draining or has MAX_READY jobs that wait."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from jobqueue.base.durations import parse_rate
from jobqueue.conf import load
from jobqueue.conf.queues import QueueSettings
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import QueueFull
from jobqueue.producer.insert import NewJob

#: how old the count may be that producers of a process go by, besides what they have added themselves
COUNT_SECONDS = 1.0
#: where jobs are delayed, so many are counted besides MAX_READY: the delay grows with them
EXCESS_MAX = 10_000
#: how long a job is delayed if no job of the queue has ended lately, and at most
UNKNOWN_SECONDS, LONGEST_SECONDS = 60.0, 3600.0


class _Backlog(NamedTuple):
    """What was counted: jobs that are due, and how many of them end in a second."""

    ready: int
    per_second: float | None


class Room(NamedTuple):
    """Jobs that may be added, and how many of them were counted, by queue."""

    jobs: Sequence[NewJob]
    counted: Mapping[str, int]


class _Backlogs:
    """The last count of each queue, with what this process has added since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[_Backlog, float]] = {}

    def add(self, queue: str, jobs: int, most: int, using: str, *, count_to: int) -> _Backlog:
        """The backlog, counted up to `count_to`, with `jobs` more; they are kept if that is at most `most`."""
        with self._lock:
            now = time.monotonic()
            found, good_until = self._known.get((using, queue), (_Backlog(0, None), 0.0))
            if now >= good_until:
                found = retry_transient("enqueue", partial(_count, queue, most, count_to, using), using=using)
                good_until = now + COUNT_SECONDS
            after = found._replace(ready=found.ready + jobs)
            self._known[using, queue] = after if after.ready <= most else found, good_until
            return after

    def keep(self, queue: str, backlog: _Backlog, using: str) -> None:
        """Count jobs too that were delayed: the next ones are delayed further."""
        with self._lock:
            _, good_until = self._known[using, queue]
            self._known[using, queue] = backlog, good_until

    def give_back(self, queue: str, jobs: int, using: str) -> None:
        """Count so many jobs no more: they were not added."""
        with self._lock:
            if (using, queue) in self._known:
                backlog, good_until = self._known[using, queue]
                self._known[using, queue] = backlog._replace(ready=max(0, backlog.ready - jobs)), good_until


_backlogs = _Backlogs()


def check_room(jobs: Sequence[NewJob], using: str) -> Room:
    """Room for `jobs`, or for the same with a later run_at where a full queue delays them.

    MAX_READY is for jobs that are due now. Raises QueueFull where it refuses them, before anything is written. Those
    whose dedupe key is held add nothing, so they are not refused; the caller gives their room back with give_back().
    """
    try:
        return _checked(jobs, using)
    except QueueFull:
        new = _without_repeats(jobs, using)
        if len(new) == len(jobs):
            raise
    return _checked(new, using)._replace(jobs=jobs)


def give_back(room: Room, added: Iterable[NewJob], using: str) -> None:
    """Count those jobs of `room` no more that were not added, because their dedupe keys are held."""
    if room.counted:
        inserted = Counter(job.queue for job in added)
        for queue, count in room.counted.items():
            if count > inserted[queue]:
                _backlogs.give_back(queue, count - inserted[queue], using)


def _without_repeats(jobs: Sequence[NewJob], using: str) -> list[NewJob]:
    """Those of `jobs` that would be inserted: their dedupe keys are not held, and no earlier one has the same key."""
    from jobqueue.producer.dedupe import holders

    keys: dict[str, list[bytes]] = {}
    for job in jobs:
        if job.dedupe_key is not None:
            keys.setdefault(job.queue, []).append(job.dedupe_key)
    known: set[tuple[str, bytes | None]] = set()
    for queue, given in keys.items():
        held = retry_transient("enqueue", partial(holders, queue, given, using=using), using=using)
        known |= {(queue, key) for key in held}
    new = []
    for job in jobs:
        if job.dedupe_key is None or (job.queue, job.dedupe_key) not in known:
            known.add((job.queue, job.dedupe_key))
            new.append(job)
    return new


def _checked(jobs: Sequence[NewJob], using: str) -> Room:
    # Models may not be imported before the apps are ready.
    from jobqueue.gates.rules import rules

    known, settings = rules(using), load().queues
    if not known.queues and not settings:
        return Room(jobs, {})
    # A job that waits for others follows from them, as a retry does.
    queues = {job.queue for job in jobs if job.waits is None}
    for queue in queues:
        if known.of_queue(queue).draining:
            raise QueueFull(
                f"queue {queue!r} is draining: what is in it is worked off, and new jobs are refused. Nothing was "
                "written. Try again after flow.resume(), or use another queue.",
                queue,
            )
    limited = {queue: own for queue in queues if (own := settings.get(queue)) is not None and own.max_ready is not None}
    if not limited:
        return Room(jobs, {})
    # By this host's clock: whether a job for later counts is no question of milliseconds.
    now = datetime.now(UTC)
    due = (job for job in jobs if job.waits is None and (job.run_at is None or job.run_at <= now))
    counts = Counter(job.queue for job in due if job.queue in limited)
    within = _within(jobs, counts, {queue: limited[queue] for queue in counts}, using)
    return Room(within, counts)


def _within(
    jobs: Sequence[NewJob], counts: Counter[str], limited: dict[str, QueueSettings], using: str
) -> Sequence[NewJob]:
    delays: dict[str, float] = {}
    for queue, own in limited.items():
        most = own.max_ready or 0
        count_to = most + (EXCESS_MAX if own.when_full == "delay" else 1)
        after = _backlogs.add(queue, counts[queue], most, using, count_to=count_to)
        if after.ready <= most:
            continue
        if own.when_full == "refuse":
            ready = after.ready - counts[queue]
            later = "Try again later" if counts[queue] <= most else f"Add at most {most} at once, also as a chunk_size"
            raise QueueFull(
                f"{ready} jobs wait in queue {queue!r}, and its MAX_READY is {most}, so {counts[queue]} more were "
                f"refused. Nothing was written. {later}, add workers, or set WHEN_FULL to 'delay'.",
                queue,
                ready,
            )
        _backlogs.keep(queue, after, using)
        delays[queue] = _delay_seconds(after.ready - most, own, after.per_second)
    return _delayed(jobs, delays, using) if delays else jobs


def _delay_seconds(excess: int, own: QueueSettings, per_second: float | None) -> float:
    """The time in which as many jobs end as there are too many."""
    if per_second is None and own.rate is not None:
        per_second = parse_rate(own.rate)
    return min(LONGEST_SECONDS, excess / per_second) if per_second else UNKNOWN_SECONDS


def _delayed(jobs: Sequence[NewJob], delays: dict[str, float], using: str) -> Sequence[NewJob]:
    now = read_now(using)
    return [_delayed_by(delays.get(job.queue), job, now) for job in jobs]


def _delayed_by(seconds: float | None, job: NewJob, now: datetime) -> NewJob:
    if seconds is None or job.waits is not None or (job.run_at is not None and job.run_at > now):
        return job
    return replace(job, run_at=now + timedelta(seconds=seconds))


def _count(queue: str, most: int, count_to: int, using: str) -> _Backlog:
    from jobqueue.gates.backlog import due_count, ended_per_second

    ready = due_count(queue, count_to, using)
    return _Backlog(ready, ended_per_second(queue, using) if ready >= most else None)
