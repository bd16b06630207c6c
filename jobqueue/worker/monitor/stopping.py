"""Stop jobs: flag those that lost their lease or were canceled, and kill the process of those that go on too long."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias, TypeVar

from jobqueue.db.clock import read_now
from jobqueue.log_format import count_of
from jobqueue.models import Job
from jobqueue.transitions.killing import kill_at
from jobqueue.worker.shared.processes import kill
from jobqueue.worker.shared.scoreboard import (
    CANCEL,
    KILLED,
    LOST,
    Hold,
    LeaseSlot,
    ProcessSlot,
    Scoreboard,
    Winding,
)

logger = logging.getLogger("jobqueue.worker")
T = TypeVar("T")

GRACE_SECONDS, GRACE_MAX_SECONDS = 5.0, 600.0
ANSWER_SECONDS = 2.0
KNOWN_MAX = 1000
#: so long before the end of its lease a frozen job with a limit is ended; a quarter of the lease if that is less
FROZEN_SECONDS = 2.0
#: so long before a canceled job is killed its process is asked where it is
STACK_SECONDS = 1.0


#: a job's id and fence -> an instant
Instants: TypeAlias = dict[tuple[int, int], T]


def flag(in_hand: Mapping[tuple[int, int], LeaseSlot], using: str) -> Instants[datetime]:
    """Flag slots, by (job_id, fence): a job that runs sees it in context.should_stop, one that waits is not started.

    Returns of those that were asked to cancel when that was.
    """
    live = {key: slot for key, slot in in_hand.items() if slot.hold in (Hold.WAITING, Hold.RUNNING)}
    if not live:
        return {}
    asked: Instants[datetime] = {}
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _ in live])
    facts = {row[0]: row[1:] for row in rows.values_list("pk", "status", "fence", "cancel_requested_at")}
    for (job_id, fence), slot in live.items():
        status, current, cancel = facts.get(job_id, (None, None, None))
        # Meanwhile the slot may hold another job.
        if (slot.job_id, slot.fence) == (job_id, fence):
            slot.flags |= LOST if (status, current) != (Job.Status.PROCESSING, fence) else 0
            slot.flags |= CANCEL if cancel is not None else 0
        # Not if it is DONE by finish(): then only the end of its body is missing.
        if cancel is not None and status != Job.Status.DONE:
            asked[job_id, fence] = cancel
    return asked


def _kills(keys: Collection[tuple[int, int]], using: str) -> Instants[float]:
    """When the processes of these jobs are to be killed (monotonic); infinity: never."""
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _ in keys])
    options = dict(rows.values_list("pk", "options"))
    found = {(job_id, fence): kill_at(options.get(job_id), fence) for job_id, fence in keys}
    now = read_now(using) if any(found.values()) else None
    return {
        key: math.inf if at is None or now is None else time.monotonic() + (at - now).total_seconds()
        for key, at in found.items()
    }


def end_frozen(scoreboard: Scoreboard) -> None:
    """Kill children that were stopped by a signal, before the lease of a job ends whose number is limited.

    Its slot would be given to another job, and its body may go on at any moment: more would run than the limit says.
    """
    now = time.monotonic()
    for slot, leases in zip(scoreboard.slots, scoreboard.lease_slots, strict=False):
        if not (slot.alive and slot.pid and slot.paused):
            continue
        limited = [one for one in leases if one.limited and one.hold != Hold.FREE]
        if any(one.lease_until - now < min(FROZEN_SECONDS, one.lease_seconds / 4) for one in limited):
            logger.warning("worker process %d is stopped by a signal; it is killed before its slots are free", slot.pid)
            # Whoever stopped it is to blame, and not its jobs.
            slot.blameless = 1
            kill(slot.pid)


class Overtime:
    """Kills the processes of jobs that are beyond their hard limit, and of canceled ones that do not stop.

    First such a child is asked to start no more jobs. It is killed when its other jobs have ended, or after
    GRACE_SECONDS; this time doubles with each earlier interruption of one of these jobs, up to GRACE_MAX_SECONDS. So
    jobs that are always late cannot interrupt a long job beside them for ever.

    A child that does not answer is killed after ANSWER_SECONDS: a job holds the interpreter or blocks the event loop,
    so the others could not end.

    For a canceled job this time is before its instant: then the child is killed, as soon as it has told where it is.
    """

    def __init__(self, scoreboard: Scoreboard) -> None:
        self._scoreboard = scoreboard
        self._since: dict[int, float] = {}
        #: by job, how often it was interrupted; the job that was interrupted last comes last
        self._interrupted: dict[int, int] = {}
        #: by child: when the process of which canceled jobs is killed, and since when it was asked for their stacks
        self._kills: dict[int, Instants[float]] = {}
        #: when they were asked to cancel, as far as it was read whether they are to be killed
        self._read: dict[int, Instants[datetime]] = {}
        self._asked: dict[int, float] = {}

    def note(self, index: int, asked: Instants[datetime], using: str) -> None:
        """Note what flag() has found in a child. One statement for each new request, and one more if it is to kill."""
        if not asked and index not in self._kills:
            return
        known, read = self._kills.get(index, {}), self._read.get(index, {})
        new = [key for key, at in asked.items() if read.get(key) != at]
        kills = {key: known[key] for key in asked if key in known} | (_kills(new, using) if new else {})
        self._read[index], self._kills[index] = asked, kills
        if not asked:
            del self._read[index], self._kills[index]

    def enforce(self, children: Iterable[int]) -> None:
        """Look at these children once; only jobs that are late are charged with an attempt."""
        now = time.monotonic()
        for index in children:
            slot = self._scoreboard.slots[index]
            running = [one for one in self._scoreboard.lease_slots[index] if one.hold == Hold.RUNNING]
            # The number first: the child may give the slot to another job, whose limit is then read.
            late = {job_id: one for one in running if (job_id := one.job_id) and 0 < one.hard_until < now}
            kills = self._kills.get(index, {})
            canceled = [one for one in running if kills.get((one.job_id, one.fence), math.inf) < math.inf]
            left = min((kills[one.job_id, one.fence] - now for one in canceled), default=math.inf)
            if left > STACK_SECONDS:
                self._asked.pop(index, None)
            if not late and left > GRACE_SECONDS:
                # A job that was late may have ended.
                slot.winding = Winding.NO
                continue
            if slot.winding == Winding.NO:
                slot.winding, self._since[index] = Winding.ASKED, now
            if left <= STACK_SECONDS and self._is_told(index, now) and left <= 0:
                self._kill_canceled(index, canceled, running)
                continue
            others = {one.job_id for one in running} - late.keys()
            if late and self._is_over(now - self._since[index], others, slot):
                self._kill(slot, late, others)

    def _is_told(self, index: int, now: float) -> bool:
        """Whether a child has told where it is, or will not do so in time; at the first call it is asked."""
        stacks = self._scoreboard.stacks[index]
        if index not in self._asked:
            self._asked[index] = now
            stacks.ask()
        return not stacks.question or now - self._asked[index] >= ANSWER_SECONDS

    def _kill_canceled(self, index: int, canceled: Sequence[LeaseSlot], running: Sequence[LeaseSlot]) -> None:
        slot, ids = self._scoreboard.slots[index], ", ".join(str(one.job_id) for one in canceled)
        others = len(running) - len(canceled)
        logger.warning(
            "job %s was canceled and has not stopped: worker process %d is killed%s", ids, slot.pid,
            f", and {count_of(others, 'job')} beside it will run again" if others else "",
        )  # fmt: skip
        for lease_slot in canceled:
            lease_slot.flags |= KILLED
        del self._asked[index]
        # Whoever canceled them wanted this, so it is no crash.
        slot.blameless = 1
        kill(slot.pid)

    def _is_over(self, waited_seconds: float, others: set[int], slot: ProcessSlot) -> bool:
        if slot.winding == Winding.ASKED and waited_seconds >= ANSWER_SECONDS:
            return True
        times = max((self._interrupted.get(job_id, 0) for job_id in others), default=0)
        return not others or waited_seconds >= min(GRACE_MAX_SECONDS, GRACE_SECONDS * 2 ** min(times, 20))

    def _kill(self, slot: ProcessSlot, late: Mapping[int, LeaseSlot], others: set[int]) -> None:
        slot.overtime = 1
        for job_id, lease_slot in late.items():
            lease_slot.overtime = job_id
        for job_id in others:
            self._interrupted[job_id] = self._interrupted.pop(job_id, 0) + 1
        while len(self._interrupted) > KNOWN_MAX:
            del self._interrupted[next(iter(self._interrupted))]
        kill(slot.pid)
