"""The process that keeps leases alive: it runs no user code, so no job can starve it.

It renews the leases of every child that lives and is not frozen, and tells children which leases were lost or are to be
canceled. Two more threads settle what dead children left behind, and keep house; each has a connection of its own, so
whatever they wait for, leases are renewed.
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

from django.db import Error, connections

from jobqueue import signals
from jobqueue.db import one_writer
from jobqueue.db.sockets import ping
from jobqueue.db.stuck_statements import watched
from jobqueue.exceptions import DatabaseBusy
from jobqueue.signals import Dispatch
from jobqueue.transitions.renewing import renew_in_hand
from jobqueue.worker.monitor.flags import flag
from jobqueue.worker.monitor.housekeeping import Housekeeping
from jobqueue.worker.monitor.listener import Listener
from jobqueue.worker.monitor.overtime import Overtime
from jobqueue.worker.monitor.preflight import preflight
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.monitor.recovery import Recovery
from jobqueue.worker.monitor.rounds import TICK_SECONDS, DutyThread, again
from jobqueue.worker.shared.processes import pid_exists
from jobqueue.worker.shared.scoreboard import Hold, LeaseSlot, Scoreboard, State
from jobqueue.worker.shared.signal_dispatcher import SignalDispatcher
from jobqueue.worker.shared.watchdog import Watchdog
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

FLAG_SECONDS = 1.0  # what waits for a thread is looked at with every tick: once it has started it can only be asked
OVERTIME_SECONDS = (
    0.25  # looking at every place of the scoreboard each tick would be most of what an idle monitor costs
)
CONNECTION_LOST = 75
HANGS = 1
HOUSE_SILENT_SECONDS = 600.0  # what keeps house may wait for locks: six times 50 s by MySQL's default
UNLOCKED_SECONDS = 2.0  # how long to wait for the server to end the sessions of a dead child
ROUND_SECONDS = 1.0  # for what the other threads are doing at the end
LAST_SECONDS = 3.0  # for receivers of signals at the end; the supervisor waits 5 s


class Monitor:
    """One pass of every duty is a method; run() is the only loop."""

    def __init__(self, options: Options, scoreboard: Scoreboard, dispatch: Dispatch | None = None) -> None:
        self.options, self.scoreboard = options, scoreboard
        self.using = options.database
        self.parent = scoreboard.supervisor_pid
        self.next_renewal = self.next_flags = self.next_overtime = 0.0
        self.orphaned_since: float | None = None
        self.turn = one_writer(options.database)
        self.house = Housekeeping(options, scoreboard, self._names, self._doubt, dispatch, self.turn)
        self.recovery = Recovery(options, scoreboard, UNLOCKED_SECONDS, self.house.retire, self._settling_goes_on)
        self.settling = DutyThread("recovery", self._recover, self.using, self._doubt, dispatch)
        self.overtime = Overtime(scoreboard)
        self.probe = self._open_probe()

    def run(self) -> int:
        """Keep until told to end, or until the last child of a lost supervisor is gone; the exit status."""
        while not self._finished():
            now = time.monotonic()
            self._tick()
            if self._hangs():
                return HANGS
            self.settling.start()
            self.house.rounds.start()
            if now >= self.next_overtime:
                self.next_overtime = now + OVERTIME_SECONDS
                self.end_overtime()
            if now >= self.next_renewal:
                self.next_renewal = now + self.options.heartbeat_seconds
                self._duty(self.renew)
            if now >= self.next_flags:
                self.next_flags = now + FLAG_SECONDS
                self._duty(self.flag)
            if self._given_up():
                return CONNECTION_LOST
            time.sleep(TICK_SECONDS)
        self.settling.end(ROUND_SECONDS)
        self.house.rounds.end(ROUND_SECONDS)
        return 0

    def end_overtime(self) -> None:
        """Kill the process of a job beyond its hard limit; the supervisor replaces it, only that job is charged."""
        self.overtime.enforce(index for index, _ in self._living())

    def renew(self) -> None:
        """Extend every lease of every living child; a child that was stopped loses its jobs as a dead one does."""
        with self.turn:
            renewed = 0
            for index, _ in self._living():
                renewed += self._renew(index)
                self._tick()
            if not renewed:
                # Renewals also notice whether the database answers.
                ping(connections[self.using])

    def _renew(self, index: int) -> int:
        """Run one statement for each length of lease; returns how many. Leases that no slot holds run out."""
        groups: dict[float, dict[tuple[int, bytes], tuple[int, LeaseSlot]]] = defaultdict(dict)
        for (job_id, fence), slot in self.scoreboard.in_hand(index).items():
            if slot.lease_seconds > 0:
                groups[slot.lease_seconds][job_id, slot.lock_token] = fence, slot
        for seconds, leases in groups.items():
            asked = time.monotonic()
            for key, left in renew_in_hand(leases, lease_seconds=seconds, using=self.using).items():
                fence, slot = leases[key]
                slot.renewed(key[0], fence, asked + left)
        return len(groups)

    def flag(self) -> None:
        """Tell what children have in hand that its lease was lost or that it is to be canceled."""
        waits = False
        for index, _ in self._living():
            in_hand = self.scoreboard.in_hand(index)
            flag(in_hand, self.using)
            waits = waits or any(lease_slot.hold == Hold.WAITING for lease_slot in in_hand.values())
        self.next_flags = time.monotonic() + (TICK_SECONDS if waits else FLAG_SECONDS)

    def _tick(self) -> None:
        self.scoreboard.header.monitor_ticked_at = time.monotonic()

    def _hangs(self) -> bool:
        """Whether another thread waits for an answer that may never come: only a new process has new threads."""
        settling, house = self.settling.silent_seconds, self.house.rounds.silent_seconds
        if settling <= self.options.silent_seconds and house <= HOUSE_SILENT_SECONDS:
            return False
        logger.error("the monitor has waited for an answer of the database for %.0f s; it leaves", max(settling, house))
        return True

    def _names(self) -> list[str]:
        return [name for _, name in self._living()]

    def _settling_goes_on(self) -> None:
        self.settling.tick()

    def _recover(self) -> None:
        self.settling.do(self.recovery.settle_dead)

    def _doubt(self) -> None:
        """Another thread's session was lost: see now whether the database answers."""
        self.next_renewal = 0.0

    def _open_probe(self) -> Probe | None:
        port = self.options.probe_port
        if port is None:
            return None
        try:
            return Probe(self.scoreboard, port, self.options.silent_seconds)
        except (OSError, RuntimeError) as error:
            logger.error("--probe-port %d cannot be used: %s; the worker runs without probes", port, error)
            return None

    def _living(self) -> list[tuple[int, str]]:
        found = []
        for index, slot in enumerate(self.scoreboard.slots):
            alive = slot.state in (State.STARTING, State.RUNNING) and slot.pid and not slot.paused
            # Asked, though the supervisor says so too: it may stand still, and would not notice a death.
            if alive and pid_exists(slot.pid):
                found.append((index, self.options.child_name(index, slot.generation)))
        return found

    def _finished(self) -> bool:
        if os.getppid() == self.parent:
            return bool(self.scoreboard.header.monitor_stop)
        # The supervisor died: the children drain; whoever is gone by now will not be announced by anybody.
        self._end_late_orphans()
        for slot in self.scoreboard.slots:
            if slot.state in (State.STARTING, State.RUNNING) and not pid_exists(slot.pid):
                slot.state = State.DEAD
        return all(slot.state == State.EMPTY for slot in self.scoreboard.slots)

    def _end_late_orphans(self) -> None:
        """A job that hangs must not keep the rest of a dead supervisor's worker, and its own lease, for ever."""
        now = time.monotonic()
        self.orphaned_since = now if self.orphaned_since is None else self.orphaned_since
        if self.options.on_timeout == "wait" or now - self.orphaned_since < self.options.shutdown_seconds:
            return
        for index, _ in self._living():
            self.scoreboard.slots[index].blameless = 1
            with suppress(ProcessLookupError):
                os.kill(self.scoreboard.slots[index].pid, signal.SIGKILL)

    def _duty(self, duty: Callable[[], None]) -> None:
        try:
            again(duty, self.using)
        except (Error, DatabaseBusy) as error:
            if not self.scoreboard.header.database_down_since:
                self.scoreboard.header.database_down_since = time.monotonic()
                logger.warning("the database is unreachable (%s); leases cannot be renewed meanwhile", error)
            self.scoreboard.header.database_down = 1
            connections[self.using].close()
            self.next_renewal = 0.0
            time.sleep(random.uniform(0.1, 0.5))
        except Exception:
            # A monitor that dies of one duty would do none of the others either.
            logger.exception("%s met an unexpected error; the monitor goes on, and tries it again", duty.__name__)
            time.sleep(TICK_SECONDS)
        else:
            if duty == self.renew:
                self._answered()

    def _answered(self) -> None:
        header, now = self.scoreboard.header, time.monotonic()
        since, header.database_down_since = header.database_down_since, 0.0
        header.database_down, header.renewed_at = 0, now
        if since:
            logger.warning("the database answers again after %.1f s", now - since)

    def _given_up(self) -> bool:
        limit, since = self.options.db_retry_seconds, self.scoreboard.header.database_down_since
        return limit is not None and bool(since) and time.monotonic() - since > limit


def run_monitor(options: Options, scoreboard: Scoreboard) -> int:
    """Check the ground, say so on the scoreboard, then keep; the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with suppress(RuntimeError):
        # Without room for it the supervisor still watches the main thread, and the main thread watches two others.
        Watchdog(f"{options.name}:{options.boot_id}", options.lease_seconds / 2).start()
    if not scoreboard.header.ready:
        with watched(connections[options.database]):
            status = preflight(options)
        if status:
            return status
        scoreboard.header.ready = 1
    Listener(options, scoreboard.wakeups).start()
    # Receivers are the project's code: one that sends mail must not keep leases from being renewed.
    dispatcher = SignalDispatcher()
    signals.dispatch_via(dispatcher.dispatch)
    status = Monitor(options, scoreboard, dispatcher.dispatch).run()
    dispatcher.end(LAST_SECONDS)
    return status
