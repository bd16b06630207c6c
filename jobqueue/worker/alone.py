"""Run one job in a process of its own, for a job that may kill it: only that process dies, and no other job with it.

`jobs retry --alone` starts such a process and watches it; the process renews its own lease. One that a worker starts
has a slot on the scoreboard, as a child has: the monitor renews its lease, kills it at its hard limit, and charges the
job if the process dies, and the supervisor waits for it when the worker stops.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from asgiref.sync import async_to_sync
from django.db import Error, connections

from jobqueue import transitions
from jobqueue.conf import load
from jobqueue.context.job_context import keep_log_lines
from jobqueue.db.outage import Outage
from jobqueue.db.retry import observe_refusals
from jobqueue.db.time_limit import Watchdog
from jobqueue.exceptions import DatabaseBusy, HardTimeout, JobLost, JobQueueError
from jobqueue.gates.limits import limits_at
from jobqueue.gates.rules import last_rules
from jobqueue.lockstats import recorder as lock_stats
from jobqueue.log_format import one_line
from jobqueue.models import Job
from jobqueue.models.job import ALONE_REASON
from jobqueue.runs.alone import begin_alone
from jobqueue.stats import recorder as job_stats
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.transitions.alone import claim_alone
from jobqueue.transitions.leases import held
from jobqueue.transitions.releasing import hold_many
from jobqueue.transitions.renewing import renew_in_hand
from jobqueue.worker.child.outcomes import settle, settle_alone
from jobqueue.worker.monitor.duty_thread import call_twice
from jobqueue.worker.monitor.recovery import death, end_if_killed
from jobqueue.worker.monitor.stopping import Overtime, flag
from jobqueue.worker.run import job_fork
from jobqueue.worker.run.attempt import Outcome
from jobqueue.worker.run.perform import Run, is_coroutine, perform, perform_coroutine
from jobqueue.worker.run.stacks import StackLooks
from jobqueue.worker.run.timeouts import Watch
from jobqueue.worker.shared.processes import Forker, print_at_sigquit
from jobqueue.worker.shared.scoreboard import (
    CANCEL,
    LOST,
    Exit,
    Hold,
    LeaseSlot,
    ProcessSlot,
    Scoreboard,
    State,
    Stop,
)
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

#: between two looks at the process; at its time limit; at requests to cancel the job
_LOOK_SECONDS, _OVERTIME_SECONDS, _FLAG_SECONDS = 0.05, 0.25, 1.0
#: an outcome whose row another session has locked is written again after so long
_AGAIN_SECONDS = 0.5


def run_alone(job_id: int | str, *, using: str) -> Job.Status | None:
    """Run a FAILED, CANCELED or held job in a new process, and wait for its end; returns the job's new status.

    None if its state or its keys forbid that, HeldBack is raised if a limit does: see claim_alone(). The time limits of
    the task apply. If the process dies, or is killed at the hard limit, the attempt is charged, and a job that had
    ended is FAILED again.
    """
    settings = load()
    worker = f"{socket.gethostname()}:{os.getpid()}:alone"
    lease = claim_alone(job_id, worker=worker, lease_seconds=settings.lease_seconds, using=using)
    if lease is None:
        return None
    # A forked process must not use the connections of this one.
    connections.close_all()
    scoreboard = Scoreboard(1, 1)
    scoreboard.fill(0)
    slot = scoreboard.slots[0]
    slot.pid = Forker().fork(_run_forked, lease, scoreboard)
    if not slot.pid:
        hold_many([lease], ALONE_REASON)
        return Job.Status.READY
    logger.info("job %d runs alone in process %d", lease.job_id, slot.pid)
    status = _wait(lease, scoreboard, settings.renew_seconds)
    problem: JobQueueError = JobLost(f"its process {death(status)} while it ran alone")
    if slot.overtime:
        problem = HardTimeout("it ran for longer than its hard_timeout_seconds; its process was killed")
    if held(lease).exists():
        # The process has not written the end of the job.
        with job_stats.recording(using):
            if not end_if_killed(lease, scoreboard, 0):
                transitions.fail_many([lease], error=problem)
    return Job.Status(Job.objects.using(using).values_list("status", flat=True).get(pk=lease.job_id))


def run_alone_child(options: Options, index: int, scoreboard: Scoreboard) -> int:
    """Run the job that has waited longest for a process of its own; returns the exit status."""
    slot = scoreboard.slots[index]
    name = options.child_name(index, slot.generation)
    slot.pid = os.getpid()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The supervisor waits for the job. Not SIG_IGN, which programs that the job executes would inherit.
        signal.signal(number, lambda *_: None)
    observe_refusals(scoreboard.redone[index].add)
    _begin()
    try:
        serves, seconds = options.selection.serves, options.lease_seconds
        lease = begin_alone(serves, worker=name, lease_seconds=seconds, using=options.database)
    except (Error, DatabaseBusy) as error:
        logger.warning("no job that is to run alone could be claimed: %s; trying again", error)
        lease = None
    if lease is not None:
        logger.warning("job %d runs alone in process %d", lease.job_id, slot.pid)
        slot.state, slot.claimed = State.RUNNING, slot.claimed + 1

        def asked_to_stop() -> bool:
            return scoreboard.header.stop != Stop.RUN or os.getppid() != scoreboard.supervisor_pid

        _run(lease, scoreboard, index, asked_to_stop)
    # Not DONE: the slot may be used again.
    slot.exit = Exit.STOPPED
    return 0


def _begin() -> None:
    """Be a process that runs code of the project, as the children of a worker are."""
    print_at_sigquit()
    job_fork.guard()
    keep_log_lines()
    list(registry.discover())


def _run_forked(lease: Lease, scoreboard: Scoreboard) -> int:
    """Run the job in the process that run_alone() has forked; returns its exit status."""
    _begin()
    _run(lease, scoreboard, 0, lambda: False)
    return 0


def _run(lease: Lease, scoreboard: Scoreboard, index: int, asked_to_stop: Callable[[], bool]) -> None:
    slot, header = scoreboard.lease_slots[index][0], scoreboard.header

    def should_stop() -> bool:
        # As in the children of a worker (worker.run.pool): nobody renews the lease any more.
        now = time.monotonic()
        return (now > slot.lease_until and now - header.renewed_at > lease.lease_seconds / 2) or asked_to_stop()

    watchdog = Watchdog(lease.worker, lease.lease_seconds / 2)
    watchdog.duties.append(StackLooks(scoreboard.stacks[index]).look)
    job_stats.start(lease.using)
    perform_alone(lease, slot, scoreboard.slots[index], should_stop, watchdog)
    lock_stats.close()
    job_stats.close()


def perform_alone(
    lease: Lease, slot: LeaseSlot, counts: ProcessSlot, asked_to_stop: Callable[[], bool], watchdog: Watchdog
) -> None:
    """Run the job in this process and write its end, however long that takes. `watchdog` is not started.

    A job that gives itself back, by Snooze for example, or is parked, is held: no other process must run it.
    """
    watch = Watch()
    watchdog.duties.append(watch.enforce)
    # Without room for its thread, the hard limit still holds.
    with suppress(RuntimeError):
        watchdog.start()
    until = time.monotonic() + lease.lease_seconds
    slot.limited = lease.slot is not None or limits_at(lease.queue, last_rules(lease.using)).most is not None
    slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=lease.lease_seconds, lease_until=until)
    slot.hold = Hold.RUNNING

    def should_stop() -> bool:
        return bool(slot.flags & (LOST | CANCEL)) or asked_to_stop()

    if is_coroutine(lease):
        outcomes = [async_to_sync(perform_coroutine)(lease, slot, should_stop)]
    else:
        outcomes = perform([lease], Run(slot, watch, should_stop))
    _write(outcomes, slot, counts)


def _write(outcomes: list[Outcome], slot: LeaseSlot, counts: ProcessSlot) -> None:
    ended = []
    for outcome in outcomes:
        if outcome.gives_back:
            slot.hold = Hold.OVER
            _hold(outcome)
        else:
            outcome.note_on(slot)
            ended.append(outcome)
    left = settle(ended, counts)
    if not left:
        return
    outage = _outage(left[0].lease)
    while left:
        # Until the database takes it: if the lease is lost meanwhile, it counts as written.
        problem = left[0].problem
        time.sleep(_AGAIN_SECONDS if problem is None else outage.met(problem))
        left = [unwritten for outcome in left for unwritten in settle_alone(outcome, counts)]
    outage.over()


def _outage(lease: Lease) -> Outage:
    return Outage("this process", f"write the end of job {lease.job_id}", lease.using)


def _hold(outcome: Outcome) -> None:
    reason = f"held: it ran alone and gave itself back: {outcome.error}"
    logger.warning("job %d is %s", outcome.lease.job_id, one_line(reason))
    outage = _outage(outcome.lease)
    while True:
        try:
            hold_many([outcome.lease], reason)
            outage.over()
            return
        except (Error, DatabaseBusy) as error:
            time.sleep(outage.met(error))


def _wait(lease: Lease, scoreboard: Scoreboard, renew_seconds: float) -> int:
    """Do what a monitor does for one process, until it has ended; returns its wait status."""
    slot, overtime = scoreboard.slots[0], Overtime(scoreboard)
    monitor = _Monitor(lease, scoreboard, overtime)
    slot.state = State.RUNNING
    renewed = flagged = looked = time.monotonic()
    while True:
        found, status = os.waitpid(slot.pid, os.WNOHANG)
        if found:
            return status
        now = time.monotonic()
        if now - looked > _OVERTIME_SECONDS:
            looked = now
            overtime.enforce([0])
        if now - renewed > renew_seconds:
            renewed = now
            monitor.do(monitor.renew)
        if now - flagged > _FLAG_SECONDS:
            flagged = now
            monitor.do(monitor.flag)
        time.sleep(_LOOK_SECONDS)


class _Monitor:
    """Renews the lease of a job that runs alone in another process, and tells it to stop if it was lost or canceled."""

    def __init__(self, lease: Lease, scoreboard: Scoreboard, overtime: Overtime) -> None:
        self._lease, self._scoreboard, self._overtime = lease, scoreboard, overtime
        self._failing = self._lost = False

    def do(self, duty: Callable[[], None]) -> None:
        """Call `duty`. A database that does not answer is logged once, and again when it answers."""
        job_id, using = self._lease.job_id, self._lease.using
        try:
            call_twice(duty, using)
        except (Error, DatabaseBusy) as error:
            if not self._failing:
                words = "the lease of job %d cannot be renewed (%s); it runs on, and the renewal is tried again"
                logger.warning(words, job_id, error)
            self._failing = True
            connections[using].close()
        else:
            if self._failing and duty == self.renew:
                logger.info("the lease of job %d is renewed again", job_id)
                self._failing = False

    def renew(self) -> None:
        """Extend the lease; the job is asked to stop if it was lost, as it may run again elsewhere."""
        lease, asked = self._lease, time.monotonic()
        held_for = renew_in_hand([(lease.job_id, lease.token)], lease_seconds=lease.lease_seconds, using=lease.using)
        slot, self._scoreboard.header.renewed_at = self._scoreboard.lease_slots[0][0], asked
        for seconds in held_for.values():
            slot.renewed(lease.job_id, lease.fence, asked + seconds)
        if held_for or slot.hold > Hold.RUNNING or self._is_finished():
            return
        slot.flags |= LOST
        if not self._lost:
            self._lost = True
            logger.error("job %d has lost its lease while it runs alone; it is asked to stop", lease.job_id)

    def flag(self) -> None:
        using = self._lease.using
        self._overtime.note(0, flag(self._scoreboard.in_hand(0), using), using)

    def _is_finished(self) -> bool:
        """Whether the job has ended by finish(), while its body still runs."""
        rows = Job.objects.using(self._lease.using).filter(pk=self._lease.job_id, fence=self._lease.fence)
        return rows.filter(status=Job.Status.DONE).exists()
