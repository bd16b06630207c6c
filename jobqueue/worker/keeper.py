"""The process that keeps leases alive: it runs no user code, so no job can starve it.

It renews the leases of every child that lives and is not frozen, tells children which leases were lost or are to be
canceled, settles what a dead child left behind, and reaps.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import Error, connections

from jobqueue import signals, transitions, workers
from jobqueue.conf import load
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import DatabaseBusy, HardTimeout, JobLost, JobQueueError, LeaseLost
from jobqueue.maintenance import lock_sweeper, lock_watch, reaper
from jobqueue.transitions import Lease
from jobqueue.transitions.leases import free_of, renew_free
from jobqueue.worker.announcer import Announcer
from jobqueue.worker.board import OVERTIME, Board, Hold, State
from jobqueue.worker.chores import Chores
from jobqueue.worker.flagging import flag
from jobqueue.worker.listener import Listener
from jobqueue.worker.liveness import lives
from jobqueue.worker.options import Options
from jobqueue.worker.preflight import preflight
from jobqueue.worker.probe import Probe

logger = logging.getLogger("jobqueue.worker")

TICK_SECONDS = 0.2
FLAG_SECONDS = 1.0  # what waits for a thread is looked at with every tick: once it has started it can only be asked
OVERTIME_SECONDS = 0.25  # looking at every place of the board each tick would be most of what an idle keeper costs
CONNECTION_LOST = 75
UNLOCKED_SECONDS = 2.0  # how long to wait for the server to end the sessions of a dead child
LAST_SECONDS = 3.0  # for receivers of signals at the end; the supervisor waits 5 s


class Keeper:
    """One pass of every duty is a method; run() is the only loop."""

    def __init__(self, options: Options, board: Board) -> None:
        self.options, self.board = options, board
        self.using = options.database
        self.parent = board.supervisor_pid
        self.next_renewal = self.next_reaping = self.next_flags = 0.0
        self.next_overtime = self.next_sweep = self.next_watch = 0.0
        self.down_since: float | None = None
        self.orphaned_since: float | None = None
        self.chores = Chores(self.using)
        self.probe = self._open_probe()

    def run(self) -> int:
        """Keep until told to end, or until the last child of a lost supervisor is gone; the exit status."""
        while not self._finished():
            now = time.monotonic()
            if now >= self.next_overtime:
                self.next_overtime = now + OVERTIME_SECONDS
                self.end_overtime()
            if self.probe is not None:
                self.probe.tick()
            self._duty(self.settle_dead)
            if now >= self.next_renewal:
                self.next_renewal = now + self.options.heartbeat_seconds
                self._duty(self.renew)
            if now >= self.next_flags:
                self.next_flags = now + FLAG_SECONDS
                self._duty(self.flag)
            if self.options.reaper and now >= self.next_reaping:
                self.next_reaping = now + random.uniform(0.8, 1.2)
                self._duty(self.reap)
            if self.options.reaper and now >= self.next_sweep:
                self.next_sweep = now + random.uniform(0.8, 1.2) * lock_sweeper.INTERVAL_SECONDS
                self._duty(self.chores.sweep)
            if self.options.reaper and now >= self.next_watch:
                self.next_watch = now + random.uniform(0.8, 1.2) * lock_watch.INTERVAL_SECONDS
                self._duty(self.chores.watch)
            if self._given_up():
                return CONNECTION_LOST
            time.sleep(TICK_SECONDS)
        self._duty(self.settle_dead)
        return 0

    def end_overtime(self) -> None:
        """Kill the process of a job beyond its hard limit; the supervisor replaces it, only that job is charged."""
        now = time.monotonic()
        for index, _ in self._living():
            late = [e for e in self.board.entries[index] if e.hold == Hold.RUNNING and 0 < e.hard_until < now]
            for entry in late:
                entry.flags |= OVERTIME
            if late:
                with suppress(ProcessLookupError):
                    os.kill(self.board.regions[index].pid, signal.SIGKILL)

    def renew(self) -> None:
        """Extend every lease of every living child; a frozen one must lose its jobs like a dead one."""
        living = self._living()
        for index, name in living:
            groups = defaultdict(list)
            in_hand = self.board.in_hand(index)
            for lease in transitions.held_by(name, using=self.using):
                if (lease.job_id, lease.fence) not in in_hand:
                    # A claim whose answer was lost: nobody works on it, so it must run out.
                    continue
                groups[load().queue_lease_seconds(lease.queue, self.options.lease_seconds)].append(lease)
            for seconds, leases in groups.items():
                asked = time.monotonic()
                for lease in renew_free(leases, lease_seconds=seconds):
                    in_hand[lease.job_id, lease.fence].renewed(lease.job_id, lease.fence, asked + seconds)
        if living:
            workers.renew([name for _, name in living], using=self.using)
        if self.options.reaper:
            workers.retire_silent(load().worker_silent_seconds, using=self.using)

    def flag(self) -> None:
        """Tell what children have in hand that its lease was lost or that it is to be canceled."""
        waits = False
        for index, _ in self._living():
            in_hand = self.board.in_hand(index)
            flag(in_hand, self.using)
            waits = waits or any(entry.hold == Hold.WAITING for entry in in_hand.values())
        self.next_flags = time.monotonic() + (TICK_SECONDS if waits else FLAG_SECONDS)

    def settle_dead(self) -> None:
        """Finish what a dead child had finished, charge what it ran (that may have killed it), give back the rest."""
        for index, region in enumerate(self.board.regions):
            if region.state == State.DEAD:
                self._settle_child(index, region)
                region.state = State.EMPTY

    def reap(self) -> None:
        """One bounded pass over leases that nobody renewed."""
        found = reaper.end_lapsed(using=self.using)
        if found.total:
            logger.warning("reaped %d lapsed leases: %d requeued, %d dead", found.total, found.requeued, found.dead)
            self.board.header.reaped += found.total
        self.chores.open_lanes()

    def _open_probe(self) -> Probe | None:
        port = self.options.probe_port
        if port is None:
            return None
        try:
            return Probe(self.board, port)
        except (OSError, RuntimeError) as error:
            logger.error("--probe-port %d cannot be used: %s; the worker runs without probes", port, error)
            return None

    def _settle_child(self, index: int, region: Any) -> None:
        name = self.options.child_name(index, region.generation)
        in_hand = self.board.in_hand(index)
        holds: dict[Hold, list[Lease]] = defaultdict(list)
        for lease in self._left_by(name):
            entry = in_hand.get((lease.job_id, lease.fence))
            holds[Hold.FREE if entry is None else Hold(entry.hold)].append(lease)
        how = _death(region.wait_status)
        returned = holds.pop(Hold.RETURNED, [])
        results = [in_hand[lease.job_id, lease.fence].kept_result() for lease in returned]
        transitions.ack_many(returned, results=[None if text is None else Encoded(text) for text in results])
        failed = holds.pop(Hold.FAILED, [])
        for lease in failed:
            _fail_as_told(lease, in_hand[lease.job_id, lease.fence])
        ran = [] if region.blameless else holds.pop(Hold.RUNNING, [])
        problem: JobQueueError
        late = [lease for lease in ran if in_hand[lease.job_id, lease.fence].flags & OVERTIME]
        if late:
            # Known who is to blame: its neighbours run again without a charge.
            holds[Hold.OVER] += [lease for lease in ran if lease not in late]
            ran, problem = late, HardTimeout("it ran for longer than its hard_timeout_seconds; its process was killed")
        else:
            problem = JobLost(f"its worker process {name} {how} while it ran")
        transitions.fail_many(ran, error=problem)
        rest = [lease for group in holds.values() for lease in group]
        transitions.release_many(rest)
        region.failed += len(ran) + len(failed)
        region.claimed -= len(holds[Hold.WAITING])
        if not region.exit:
            why = "killed at the end of --shutdown-timeout" if region.blameless else how
            workers.retire(name, why, using=self.using)
        if returned or failed or ran or rest:
            logger.warning(
                "%s %s: %d jobs had returned, %d failed, %d charged, %d given back",
                *(name, how, len(returned), len(failed), len(ran), len(rest)),
            )

    def _left_by(self, name: str) -> list[Lease]:
        """The leases of a dead child, as soon as the server has noticed its death and unlocked their rows.

        A statement of the dead may go on there for long: leases that it still locks are left to run out.
        """
        until = time.monotonic() + min(UNLOCKED_SECONDS, self.options.heartbeat_seconds)
        while True:
            held = transitions.held_by(name, using=self.using)
            free = free_of(held)
            if len(free) == len(held) or time.monotonic() > until:
                return free
            time.sleep(0.02)

    def _living(self) -> list[tuple[int, str]]:
        found = []
        for index, region in enumerate(self.board.regions):
            alive = region.state in (State.STARTING, State.RUNNING) and region.pid and not region.paused
            if alive and (os.getppid() == self.parent or lives(region.pid)):
                found.append((index, self.options.child_name(index, region.generation)))
        return found

    def _finished(self) -> bool:
        if os.getppid() == self.parent:
            return bool(self.board.header.keeper_stop)
        # The supervisor died: the children drain; whoever is gone by now will not be announced by anybody.
        self._end_late_orphans()
        for region in self.board.regions:
            if region.state in (State.STARTING, State.RUNNING) and not lives(region.pid):
                region.state = State.DEAD
        return all(region.state == State.EMPTY for region in self.board.regions)

    def _end_late_orphans(self) -> None:
        """A job that hangs must not keep the rest of a dead supervisor's worker, and its own lease, for ever."""
        now = time.monotonic()
        self.orphaned_since = now if self.orphaned_since is None else self.orphaned_since
        if self.options.on_timeout == "wait" or now - self.orphaned_since < self.options.shutdown_seconds:
            return
        for index, _ in self._living():
            self.board.regions[index].blameless = 1
            with suppress(ProcessLookupError):
                os.kill(self.board.regions[index].pid, signal.SIGKILL)

    def _duty(self, duty: Callable[[], None]) -> None:
        try:
            try:
                duty()
            except Error:
                # One lost session is no outage: the second try has a new one.
                connections[self.using].close()
                duty()
        except (Error, DatabaseBusy) as error:
            if self.down_since is None:
                self.down_since = time.monotonic()
                logger.warning("the database is away (%s); leases cannot be renewed meanwhile", error)
            self.board.header.database_down = 1
            connections[self.using].close()
            self.next_renewal = 0.0
            time.sleep(random.uniform(0.1, 0.5))
        except Exception:
            # A keeper that dies of one duty would do none of the others either.
            logger.exception("%s met an unexpected error; the keeper goes on, and tries it again", duty.__name__)
            time.sleep(TICK_SECONDS)
        else:
            if duty == self.renew and self.down_since is not None:
                logger.warning("the database answers again after %.1f s", time.monotonic() - self.down_since)
                self.down_since = None
                self.board.header.database_down = 0

    def _given_up(self) -> bool:
        limit = self.options.db_retry_seconds
        return limit is not None and self.down_since is not None and time.monotonic() - self.down_since > limit


def run_keeper(options: Options, board: Board) -> int:
    """Check the ground, say so on the board, then keep; the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if not board.header.ready:
        status = preflight(options)
        if status:
            return status
        board.header.ready = 1
    Listener(options, board.bells).start()
    # Receivers are the project's code: one that sends mail must not keep leases from being renewed.
    announcer = Announcer()
    signals.carry(announcer.give)
    status = Keeper(options, board).run()
    announcer.end(LAST_SECONDS)
    return status


def _fail_as_told(lease: Lease, entry: Any) -> None:
    """Write down the failure of a run whose process died before it could."""
    delay = entry.delay_seconds if entry.delay_seconds >= 0 else None
    with suppress(LeaseLost):
        transitions.fail(lease, error=entry.kept_failure(), delay_seconds=delay, retry=not entry.final)


def _death(wait_status: int) -> str:
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        return f"was killed by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    return f"exited with status {os.waitstatus_to_exitcode(wait_status)}"
