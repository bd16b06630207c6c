"""Jobs beyond their hard limits: the monitor kills their process, after the other jobs in it have had time to end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from jobqueue.worker.shared.scoreboard import OVERTIME, Hold, Scoreboard, Winding

GRACE_SECONDS, GRACE_MAX_SECONDS = 5.0, 600.0
ANSWER_SECONDS = 2.0
KNOWN_MAX = 1000


class Overtime:
    """Who is late, for whom the end of a process waits, and how often a job was interrupted by somebody else's fault.

    With a job beyond its hard limit, a child is asked to begin nothing more, and is killed when all else that it runs
    has ended: at most GRACE_SECONDS later, twice as long for each time that one of the others was interrupted so. So
    jobs that are always late interrupt one beside them a few times and then let it end, however long it runs: it is
    begun once more for each doubling, up to GRACE_MAX_SECONDS.

    A child that does not answer is killed after ANSWER_SECONDS. A job holds the interpreter or blocks the event loop
    there, so the others could not end.
    """

    def __init__(self, scoreboard: Scoreboard) -> None:
        self._scoreboard = scoreboard
        self._since: dict[int, float] = {}
        self._interrupted: dict[int, int] = {}

    def enforce(self, children: Iterable[int]) -> None:
        """Look at these children once; only jobs that are late are charged with an attempt."""
        now = time.monotonic()
        for index in children:
            slot = self._scoreboard.slots[index]
            running = [
                lease_slot for lease_slot in self._scoreboard.lease_slots[index] if lease_slot.hold == Hold.RUNNING
            ]
            late = [lease_slot for lease_slot in running if 0 < lease_slot.hard_until < now]
            if not late:
                # It has ended after all.
                slot.winding = Winding.NO
                continue
            if slot.winding == Winding.NO:
                slot.winding, self._since[index] = Winding.ASKED, now
            others = {lease_slot.job_id for lease_slot in running} - {lease_slot.job_id for lease_slot in late}
            if self._is_over(now - self._since[index], others, slot):
                self._kill(slot, late, others)

    def _is_over(self, waited_seconds: float, others: set[int], slot: Any) -> bool:
        if slot.winding == Winding.ASKED and waited_seconds >= ANSWER_SECONDS:
            return True
        times = max((self._interrupted.get(job_id, 0) for job_id in others), default=0)
        return not others or waited_seconds >= min(GRACE_MAX_SECONDS, GRACE_SECONDS * 2 ** min(times, 20))

    def _kill(self, slot: Any, late: list[Any], others: set[int]) -> None:
        for lease_slot in late:
            lease_slot.flags |= OVERTIME
        for job_id in others:
            # The last one in the dict is the one that was interrupted last.
            self._interrupted[job_id] = self._interrupted.pop(job_id, 0) + 1
        while len(self._interrupted) > KNOWN_MAX:
            del self._interrupted[next(iter(self._interrupted))]
        with suppress(ProcessLookupError):
            os.kill(slot.pid, signal.SIGKILL)
