"""Notices that a child has free threads and claims nothing although work is due, and says why, once per incident."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from django.db.models import FloatField
from django.utils import translation

from jobqueue.base.durations import format_seconds
from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout
from jobqueue.explain import Explanation, explain_queue
from jobqueue.explain.explanation import CODES
from jobqueue.explain.row_locks import row_locks, waits_in_words
from jobqueue.gates.backlog import INDEX, Level, levels_below
from jobqueue.log_format import one_line
from jobqueue.models import Job
from jobqueue.transitions.claiming import candidates
from jobqueue.worker.monitor.troubles import Troubles
from jobqueue.worker.shared.scoreboard import Scoreboard, Stop
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

#: priorities of a queue that are looked at, the highest first
LEVELS_MAX = 8
#: how long each read of jobs may take: their table may be locked as a whole
READ_SECONDS = 5.0
#: looks in a row that must find the same before it is logged
LOOKS = 2
_SECONDS = Slot("seconds", FloatField())
#: after an answer whose code is meant, the queue is not asked about again for this long
MEANT_SECONDS = 60.0


class Late(NamedTuple):
    """A job that has been due for too long."""

    queue: str
    job_id: int
    seconds: float


class StallWatch:
    """Watches one worker. One thread calls look() every `interval_seconds`; stalls are passed to `troubles`."""

    def __init__(
        self,
        options: Options,
        scoreboard: Scoreboard,
        living: Callable[[], list[tuple[int, str]]],
        troubles: Troubles,
    ) -> None:
        self._options, self._scoreboard, self._living, self._troubles = options, scoreboard, living, troubles
        #: by name of the child: how many jobs it has claimed, and since when it has been so many
        self._claimed: dict[str, tuple[int, float]] = {}
        self._looks = 0
        self._since: float | None = None
        self._meant_until: dict[str, float] = {}

    @property
    def limit_seconds(self) -> float:
        """How long a job may be due, and a child with free threads claim nothing: half of WORKER_SILENT_SECONDS.

        At least three of the longest pauses between two looks of an idle worker.
        """
        return max(load().worker_silent_seconds / 2, 3 * self._options.poll_high_seconds)

    @property
    def interval_seconds(self) -> float:
        return self.limit_seconds / 2

    def look(self) -> None:
        """Look once. No statement while all children claim or are full; else one, and more if jobs wait."""
        idle = self._idle()
        try:
            found = self._late_in_time() if idle else []
        except StatementTimeout as error:
            self._looks += 1
            if self._looks >= LOOKS:
                self._tell_blind(idle, error)
            return
        self._looks = self._looks + 1 if found else 0
        if not found:
            self._end()
        elif self._looks >= LOOKS:
            self._tell(idle, found)

    def _idle(self) -> dict[str, float]:
        """The children that could have claimed jobs and did not, for longer than the limit: for how long."""
        now, stops = time.monotonic(), self._scoreboard.header.stop != Stop.RUN
        children = {name: self._scoreboard.slots[index] for index, name in self._living()}
        before = self._claimed
        self._claimed = {}
        for name, slot in children.items():
            count, since = before.get(name, (-1, now))
            # A lease that was given back lowers the count, so any change of it counts as a claim.
            self._claimed[name] = (count, since) if slot.room > 0 and count == slot.claimed else (slot.claimed, now)
        return {} if stops else {n: now - at for n, (_, at) in self._claimed.items() if now - at >= self.limit_seconds}

    def _late_in_time(self) -> list[Late]:
        with time_limit(READ_SECONDS, using=self._options.database):
            return self._late()

    def _late(self) -> list[Late]:
        """A job of each queue that has been due for longer than the limit, of the highest priority with such a job."""
        selection, using = self._options.selection, self._options.database
        names = set(selection.weights)
        if selection.every is not None:
            names.update(candidates.waiting_names(using=using))
        served = sorted(filter(selection.serves, names))
        heads = candidates.heads(served, using=using) if served else []
        levels = [Level(head.queue, Job.Status.READY, 0, head.level) for head in heads if head.level is not None]
        found: dict[str, Late] = {}
        for _ in range(LEVELS_MAX):
            runs = [{"queue": one.queue, "level": one.level, "seconds": -self.limit_seconds} for one in levels]
            for queue, job_id, run_at, now in _first_late(using).seek_each(runs):
                found[queue] = Late(queue, job_id, (now - run_at).total_seconds())
            # Delayed jobs may have a higher priority.
            levels = levels_below([one for one in levels if one.queue not in found], using)
            if not levels:
                break
        return [found[queue] for queue in sorted(found)]

    def _tell(self, idle: Mapping[str, float], found: list[Late]) -> None:
        """Log the beginning of an incident, unless somebody wants the jobs to wait."""
        now = time.monotonic()
        if self._since is None:
            asked = [late for late in found if self._meant_until.get(late.queue, 0.0) <= now]
            for late in asked[:3]:
                reasons = self._reasons(late.queue)
                if not reasons or not CODES[reasons[0].code].is_meant:
                    self._begin(idle, late, reasons[0] if reasons else None)
                    return
                self._meant_until[late.queue] = now + MEANT_SECONDS
        else:
            self._troubles.stalled = {name: one for name, one in self._troubles.stalled.items() if name in idle}

    def _tell_blind(self, idle: Mapping[str, float], error: StatementTimeout) -> None:
        """Log that the jobs cannot be read, so whether any is due is not known; and who has locked their table."""
        if self._since is not None:
            return
        with translation.override("en"):
            locks = waits_in_words(self._options.database)
        self._since = time.monotonic()
        facts: dict[str, JSON] = {"queue": None, "job_id": None, "code": locks[0].code if locks else None}
        self._troubles.stalled = {name: {**facts, "seconds": round(seconds)} for name, seconds in idle.items()}
        line = f"{', '.join(idle)} with free threads has claimed nothing for {_span(max(idle.values()))}, "
        line += f"and jobs cannot be read. {error}"
        if locks:
            line += f" The likeliest reason (row_lock): {locks[0].text.rstrip('.')}. {locks[0].next_step}"
        logger.warning("%s", one_line(line))

    def _reasons(self, queue: str) -> list[Explanation]:
        """The likeliest reasons first, without those that say that no worker runs: this worker does."""
        using = self._options.database
        # In English, as all lines of the log.
        with translation.override("en"):
            # All causes, however long that takes: nobody waits for this answer.
            reasons = explain_queue(queue, using=using, all_causes=True)
            found = [one for one in reasons if one.code not in ("no_worker", "running")]
            surely = bool(found) and found[0].code != "workers_busy"
            return found if surely else row_locks(using) + found

    def _begin(self, idle: Mapping[str, float], late: Late, reason: Explanation | None) -> None:
        self._since = time.monotonic()
        code = None if reason is None else reason.code
        facts: dict[str, JSON] = {"queue": late.queue, "job_id": late.job_id, "code": code}
        self._troubles.stalled = {name: {**facts, "seconds": round(seconds)} for name, seconds in idle.items()}
        line = (
            f"job {late.job_id} of queue {late.queue} has been due for {_span(late.seconds)}, and {', '.join(idle)} "
            f"with free threads has claimed nothing for {_span(max(idle.values()))}. "
        )
        if reason is None:
            line += "The database does not tell why; look what the statements of this worker wait for there."
        else:
            line += f"The likeliest reason ({reason.code}): {reason.text.rstrip('.')}. {reason.next_step}"
        logger.warning("%s", one_line(line))

    def _end(self) -> None:
        if self._since is not None:
            logger.info("the jobs that nobody claimed are gone, after %s", _span(time.monotonic() - self._since))
        self._since, self._troubles.stalled = None, {}


def _span(seconds: float) -> str:
    return format_seconds(float(round(seconds)))


@cache
def _first_late(using: str) -> Prepared:
    """Queue, id and run_at of the first job of a priority, if it has been due for longer than the slot, and now."""
    rows = Job.objects.using(using).filter(queue=candidates.QUEUE, status=candidates.READY, gate=0)
    rows = rows.filter(priority=candidates.LEVEL, run_at__lte=UtcNowPlus(_SECONDS)).order_by("run_at", "id")
    first = vendor(using).force_index(rows, INDEX)
    return prepare_rows(first.values_list("queue", "pk", Selected("run_at"), Selected(UtcNow()))[:1])
