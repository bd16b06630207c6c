"""Stop jobs: flag those that lost their lease or were canceled, and kill the process of those beyond their limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from jobqueue.models import Job
from jobqueue.worker.shared.processes import kill
from jobqueue.worker.shared.scoreboard import CANCEL, LOST, OVERTIME, Hold, LeaseSlot, ProcessSlot, Scoreboard, Winding

logger = logging.getLogger("jobqueue.worker")

GRACE_SECONDS, GRACE_MAX_SECONDS = 5.0, 600.0
ANSWER_SECONDS = 2.0
KNOWN_MAX = 1000
#: so long before the end of its lease a frozen job with a limit is ended; a quarter of the lease if that is less
FROZEN_SECONDS = 2.0


def flag(in_hand: Mapping[tuple[int, int], LeaseSlot], using: str) -> None:
    """Flag slots, by (job_id, fence): a job that runs sees it in context.should_stop, one that waits is not started."""
    live = {key: slot for key, slot in in_hand.items() if slot.hold in (Hold.WAITING, Hold.RUNNING)}
    if not live:
        return
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _ in live])
    facts = {row[0]: row[1:] for row in rows.values_list("pk", "status", "fence", "cancel_requested_at")}
    for (job_id, fence), slot in live.items():
        status, current, cancel = facts.get(job_id, (None, None, None))
        # Meanwhile the slot may hold another job.
        if (slot.job_id, slot.fence) == (job_id, fence):
            slot.flags |= LOST if (status, current) != (Job.Status.PROCESSING, fence) else 0
            slot.flags |= CANCEL if cancel is not None else 0


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
    """Kills the processes of jobs that are beyond their hard limit.

    First such a child is asked to start no more jobs. It is killed when its other jobs have ended, or after
    GRACE_SECONDS; this time doubles with each earlier interruption of one of these jobs, up to GRACE_MAX_SECONDS. So
    jobs that are always late cannot interrupt a long job beside them for ever.

    A child that does not answer is killed after ANSWER_SECONDS: a job holds the interpreter or blocks the event loop,
    so the others could not end.
    """

    def __init__(self, scoreboard: Scoreboard) -> None:
        self._scoreboard = scoreboard
        self._since: dict[int, float] = {}
        #: by job, how often it was interrupted; the job that was interrupted last comes last
        self._interrupted: dict[int, int] = {}

    def enforce(self, children: Iterable[int]) -> None:
        """Look at these children once; only jobs that are late are charged with an attempt."""
        now = time.monotonic()
        for index in children:
            slot = self._scoreboard.slots[index]
            running = [one for one in self._scoreboard.lease_slots[index] if one.hold == Hold.RUNNING]
            late = [one for one in running if 0 < one.hard_until < now]
            if not late:
                # A job that was late may have ended.
                slot.winding = Winding.NO
                continue
            if slot.winding == Winding.NO:
                slot.winding, self._since[index] = Winding.ASKED, now
            others = {one.job_id for one in running} - {one.job_id for one in late}
            if self._is_over(now - self._since[index], others, slot):
                self._kill(slot, late, others)

    def _is_over(self, waited_seconds: float, others: set[int], slot: ProcessSlot) -> bool:
        if slot.winding == Winding.ASKED and waited_seconds >= ANSWER_SECONDS:
            return True
        times = max((self._interrupted.get(job_id, 0) for job_id in others), default=0)
        return not others or waited_seconds >= min(GRACE_MAX_SECONDS, GRACE_SECONDS * 2 ** min(times, 20))

    def _kill(self, slot: ProcessSlot, late: Sequence[LeaseSlot], others: set[int]) -> None:
        for lease_slot in late:
            lease_slot.flags |= OVERTIME
        for job_id in others:
            self._interrupted[job_id] = self._interrupted.pop(job_id, 0) + 1
        while len(self._interrupted) > KNOWN_MAX:
            del self._interrupted[next(iter(self._interrupted))]
        kill(slot.pid)
