"""Settle the jobs of a dead child. The scoreboard shows how far each had come, and so whether it runs again."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.db import connections

from jobqueue import transitions
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import HardTimeout, JobLost, JobQueueError, LeaseLost
from jobqueue.log_format import count_of, one_line
from jobqueue.models import Job
from jobqueue.models.job import ALONE_REASON
from jobqueue.requested import REQUESTED_ENDS
from jobqueue.transitions import Lease
from jobqueue.transitions.killing import end_killed
from jobqueue.transitions.leases import free_of
from jobqueue.transitions.releasing import end_as_requested, hold_many
from jobqueue.worker.shared.scoreboard import KILLED, Hold, LeaseSlot, ProcessSlot, Scoreboard, State
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

_HAD_REQUESTED = f"had raised {' or '.join(end.error.__name__ for end in REQUESTED_ENDS)}"


class Recovery:
    """Looks for dead children on the scoreboard.

    `unlocked_seconds`: how long to wait for the server to end the sessions of one. `retired` receives its name and why
    it died, and must not wait for the database. `tick` is called after each step.
    """

    def __init__(
        self,
        options: Options,
        scoreboard: Scoreboard,
        unlocked_seconds: float,
        retired: Callable[[str, str], None],
        tick: Callable[[], None],
    ) -> None:
        self._options, self._scoreboard, self._using = options, scoreboard, options.database
        self._unlocked_seconds, self._retired, self._tick = unlocked_seconds, retired, tick

    def settle_dead(self) -> None:
        """Settle the jobs that a dead child had ended, charge those that ran, and release the rest.

        A job that ran is charged with an attempt, because it may have killed the process; but not if the worker has
        done so.
        """
        for index, slot in enumerate(self._scoreboard.slots):
            if slot.state == State.DEAD:
                self._settle_child(index, slot)
                slot.state = State.EMPTY
                # Children die seldom: an idle session would be held for nothing.
                connections[self._using].close()
                self._scoreboard.wakeups.wake()

    def _settle_child(self, index: int, slot: ProcessSlot) -> None:
        name = self._options.child_name(index, slot.generation)
        in_hand = self._scoreboard.in_hand(index)
        holds: dict[Hold, list[Lease]] = defaultdict(list)
        for lease in self._left_by(name):
            lease_slot = in_hand.get((lease.job_id, lease.fence))
            holds[Hold.FREE if lease_slot is None else Hold(lease_slot.hold)].append(lease)
        how = death(slot.wait_status)
        returned = holds.pop(Hold.RETURNED, [])
        results = [in_hand[lease.job_id, lease.fence].kept_result() for lease in returned]
        transitions.ack_many(returned, results=[None if text is None else Encoded(text) for text in results])
        failed = holds.pop(Hold.FAILED, [])
        for lease in failed:
            _fail_as_recorded(lease, in_hand[lease.job_id, lease.fence])
            self._tick()
        requested = holds.pop(Hold.REQUESTED, [])
        for lease in requested:
            lease_slot = in_hand[lease.job_id, lease.fence]
            REQUESTED_ENDS[lease_slot.requested].count_in(slot)
            _end_as_requested(lease, lease_slot)
            self._tick()
        killed = self._end_killed(index, holds)
        ran = [] if slot.blameless else holds.pop(Hold.RUNNING)
        problem: JobQueueError = JobLost(f"its worker process {name} {how} while it ran")
        if slot.overtime:  # the other jobs run again without a charge
            late = [lease for lease in ran if in_hand[lease.job_id, lease.fence].overtime == lease.job_id]
            holds[Hold.OVER] += [lease for lease in ran if lease not in late]
            ran, problem = late, HardTimeout("it ran for longer than its hard_timeout_seconds; its process was killed")
        for lease in ran:
            _charge(lease, problem, how)
            self._tick()
        rest = [lease for group in holds.values() for lease in group]
        self._give_back(index, rest)
        slot.failed += len(ran) + len(failed)
        slot.finished += len(returned) + len(ran) + len(failed) + len(requested) + len(killed)
        slot.claimed -= len(holds[Hold.WAITING])
        if not slot.exit:
            self._retired(name, _why_killed(slot, killed) if slot.blameless else how)
        if told := _jobs(len(returned), len(failed), len(ran), len(rest), len(requested), len(killed)):
            logger.warning("%s %s; %s", name, how, told)

    def _end_killed(self, index: int, holds: dict[Hold, list[Lease]]) -> list[Lease]:
        """End the jobs for whose sake the child was killed, and take them out of `holds`."""
        running = holds[Hold.RUNNING]
        killed = [lease for lease in running if end_if_killed(lease, self._scoreboard, index)]
        holds[Hold.RUNNING] = [lease for lease in running if lease not in killed]
        return killed

    def _give_back(self, index: int, leases: list[Lease]) -> None:
        if index == self._options.processes:
            # A job that runs alone: no other process must take it.
            hold_many(leases, ALONE_REASON)
        else:
            transitions.release_many(leases)

    def _left_by(self, name: str) -> list[Lease]:
        """The leases of a dead child whose rows are not locked, after waiting for the server to end its sessions.

        A statement of the dead child may run on the server for long: leases whose rows it locks are left to expire.
        """
        until = time.monotonic() + min(self._unlocked_seconds, self._options.heartbeat_seconds)
        while True:
            held = transitions.held_by(name, using=self._using)
            free = free_of(held)
            self._tick()
            if len(free) == len(held) or time.monotonic() > until:
                return free
            time.sleep(0.02)


def _charge(lease: Lease, problem: JobQueueError, how: str) -> None:
    """Charge a job that ran when its process died, and name it in the log: it may be what killed the process."""
    with suppress(LeaseLost):
        status = transitions.fail(lease, error=problem)
        what = {Job.Status.FAILED: "it is dead", Job.Status.CANCELED: "it is canceled"}.get(status, "it runs again")
        logger.log(
            logging.ERROR if status == Job.Status.FAILED else logging.WARNING,
            "job %d (%s) was running when its process %s: try %d/%d is used, %s",
            lease.job_id,
            one_line(lease.task or f"handler of {lease.queue}"),
            how,
            lease.attempt,
            lease.max_attempts,
            what,
            extra={"event": "lost", "job_id": lease.job_id, "queue": lease.queue},
        )


def end_if_killed(lease: Lease, scoreboard: Scoreboard, index: int) -> bool:
    """End a job for whose sake its process, the child `index`, was killed: it was canceled and did not stop."""
    lease_slot = scoreboard.in_hand(index).get((lease.job_id, lease.fence))
    if lease_slot is None or not lease_slot.flags & KILLED:
        return False
    told: Mapping[str, Any] = json.loads(scoreboard.stacks[index].answer() or b"{}")
    places = [place for place in told.get("places", ()) if [lease.job_id, lease.fence] in place["jobs"]]
    return end_killed(lease, places[0]["stack"] if places else [])


def _why_killed(slot: ProcessSlot, killed: Sequence[Lease]) -> str:
    if killed:
        return f"killed because job {killed[0].job_id} was canceled and did not stop"
    return "killed because a signal had stopped it" if slot.paused else "killed at the end of --shutdown-timeout"


def _fail_as_recorded(lease: Lease, lease_slot: LeaseSlot) -> None:
    """Write the failure of a run whose process died before it could do so."""
    error, delay = lease_slot.kept_failure(), lease_slot.kept_delay
    with suppress(LeaseLost):
        transitions.fail(lease, error=error, delay_seconds=delay, retry=not lease_slot.final)


def _end_as_requested(lease: Lease, lease_slot: LeaseSlot) -> None:
    """Write the end that a job had requested whose process died before it could do so."""
    with suppress(LeaseLost):
        end_as_requested(lease, lease_slot.kept_requested())


def _jobs(returned: int, failed: int, charged: int, given_back: int, requested: int = 0, killed: int = 0) -> str:
    """What became of its jobs."""
    words = {
        "had returned": returned,
        "had failed": failed,
        _HAD_REQUESTED: requested,
        "canceled": killed,
        "charged with an attempt": charged,
        "given back without using an attempt": given_back,
    }
    return ", ".join(f"{count_of(number, 'job')} {what}" for what, number in words.items() if number)


def death(wait_status: int) -> str:
    """How a process ended, as the predicate of a sentence."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        return f"was killed by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    return f"exited with status {os.waitstatus_to_exitcode(wait_status)}"
