"""The process that renews leases. It runs no job code, so no job can keep it from doing so.

It renews the leases of every child that is alive and not stopped by a signal, and flags jobs whose lease was lost or
that were canceled. Another thread settles the jobs of dead children, a third one does the housekeeping, and a
fourth one fires schedules. Each has its own connection, so renewals do not wait for them.
"""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

from django.db import Error, connections

from jobqueue import signals, wakeup
from jobqueue.db import one_writer
from jobqueue.db.outage import URGENT_SECONDS, Outage
from jobqueue.db.retry import observe_refusals
from jobqueue.db.sessions import limit_idle_transactions, ping
from jobqueue.db.time_limit import Watchdog, watched
from jobqueue.exceptions import DatabaseBusy, NotSupported
from jobqueue.lockstats import recorder
from jobqueue.log_format import count_of, one_line
from jobqueue.maintenance import worker_rows
from jobqueue.schedules import firing, versions
from jobqueue.signals import Dispatch
from jobqueue.stats import recorder as job_stats
from jobqueue.transitions.renewing import renew_in_hand
from jobqueue.wakeup import QUIET_SECONDS, Notifier
from jobqueue.wakeup.notifiers import Subscription
from jobqueue.worker.monitor.duty_thread import TICK_SECONDS, DutyThread, call_twice, log_unexpected
from jobqueue.worker.monitor.housekeeping import Housekeeping
from jobqueue.worker.monitor.preflight import preflight
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.monitor.recovery import Recovery
from jobqueue.worker.monitor.stall_watch import StallWatch
from jobqueue.worker.monitor.stopping import Overtime, end_frozen, flag
from jobqueue.worker.shared.processes import kill, pid_exists
from jobqueue.worker.shared.scoreboard import Hold, LeaseSlot, Scoreboard, State
from jobqueue.worker.shared.signal_dispatcher import SignalDispatcher
from jobqueue.worker.shared.wakeup_pipes import WakeupPipes
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

FLAG_SECONDS = 1.0  # while jobs wait for a thread, each tick: a flag in time keeps them from being started
OVERTIME_SECONDS = 0.25  # reading the whole scoreboard with each tick would be most of the cost of an idle monitor
CONNECTION_LOST = 75
HANGS = 1
HOUSE_SILENT_SECONDS = 600.0  # housekeeping may wait for locks: six times 50 s by MySQL's default
UNLOCKED_SECONDS = 2.0  # how long to wait for the server to end the sessions of a dead child
ROUND_SECONDS = 1.0  # how long the other threads may take to end
LAST_SECONDS = 3.0  # how long receivers of signals may take at the end; the supervisor waits 5 s
CHECK_SECONDS = 30.0  # after this long without a wake-up, check whether the connection still works
DUE_SECONDS = 0.8  # between two looks for ticks that are due: with its transaction, a tick fires within two seconds


class Monitor:
    """Each duty is a method that does one pass; run() is the only loop."""

    def __init__(self, options: Options, scoreboard: Scoreboard, dispatch: Dispatch | None = None) -> None:
        self.options, self.scoreboard, self.header = options, scoreboard, scoreboard.header
        self.using = options.database
        self.next_renewal = self.next_flags = self.next_overtime = 0.0
        self.orphaned_since: float | None = None
        # An earlier monitor may have found the database unreachable, or have been replaced for that.
        since = self.header.database_down_since
        self.outage = Outage("the monitor", "renew leases", self.using, most_seconds=URGENT_SECONDS, since=since)
        self.turn = one_writer(options.database)
        self.house = Housekeeping(options, scoreboard, self._living, self._doubt, dispatch, self.turn)
        stalls = StallWatch(options, scoreboard, self._living, self.house.troubles)
        self.scheduler = Scheduler(options, self._living, self._doubt, dispatch, stalls, scoreboard.ask_to_register)
        self.settling = DutyThread("recovery", self._recover, self.using, self._doubt, dispatch)
        self.recovery = Recovery(options, scoreboard, UNLOCKED_SECONDS, self.house.retire, self.settling.tick)
        self.overtime = Overtime(scoreboard)
        self.probe = self._open_probe()

    def run(self) -> int:
        """Run until the supervisor asks for the end, or until a dead supervisor's last child has ended.

        Returns the exit status.
        """
        while not self._finished():
            now = time.monotonic()
            self._tick()
            if self._hangs():
                return HANGS
            self.settling.start()
            self.house.thread.start()
            self.scheduler.thread.start()
            if now >= self.next_overtime:
                self.next_overtime = now + OVERTIME_SECONDS
                self.overtime.enforce(index for index, _ in self._living())
                end_frozen(self.scoreboard)
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
        self.scheduler.thread.end(ROUND_SECONDS)
        self.house.end(ROUND_SECONDS)
        return 0

    def renew(self) -> None:
        """Extend every lease of every living child. A child that was stopped by a signal loses its leases."""
        with self.turn:
            statements = leases = 0
            for index, _ in self._living():
                groups = self._renew(index)
                statements, leases = statements + len(groups), leases + sum(groups)
                self._tick()
            if not statements:
                # Renewals also notice whether the database answers.
                ping(connections[self.using])
        if leases:
            logger.debug("renewed %s", count_of(leases, "lease"))
        else:
            detail.debug("no lease to renew; the database answers")

    def _renew(self, index: int) -> list[int]:
        """Run one statement for each length of lease; returns how many leases each has. One without a slot expires."""
        groups: dict[float, dict[tuple[int, bytes], tuple[int, LeaseSlot]]] = defaultdict(dict)
        for (job_id, fence), slot in self.scoreboard.in_hand(index).items():
            if slot.lease_seconds > 0:
                groups[slot.lease_seconds][job_id, slot.lock_token] = fence, slot
        for seconds, leases in groups.items():
            asked = time.monotonic()
            for key, left in renew_in_hand(leases, lease_seconds=seconds, using=self.using).items():
                fence, slot = leases[key]
                slot.renewed(key[0], fence, asked + left)
        return [len(leases) for leases in groups.values()]

    def flag(self) -> None:
        """Flag the jobs in the children whose lease was lost or that are canceled."""
        waits = False
        for index, _ in self._living():
            in_hand = self.scoreboard.in_hand(index)
            self.overtime.note(index, flag(in_hand, self.using), self.using)
            waits = waits or any(lease_slot.hold == Hold.WAITING for lease_slot in in_hand.values())
        self.next_flags = time.monotonic() + (TICK_SECONDS if waits else FLAG_SECONDS)

    def _tick(self) -> None:
        self.header.monitor_ticked_at = time.monotonic()

    def _hangs(self) -> bool:
        """Whether another thread waits for an answer that may never come: only a new process has new threads."""
        settling = self.settling.silent_seconds
        others = max(self.house.thread.silent_seconds, self.scheduler.thread.silent_seconds)
        if settling <= self.options.silent_seconds and others <= HOUSE_SILENT_SECONDS:
            return False
        logger.error(
            "the monitor has waited for an answer of the database for %.0f s; it leaves", max(settling, others)
        )
        return True

    def _recover(self) -> None:
        self.settling.do(self.recovery.settle_dead, "settle the jobs of dead children")

    def _doubt(self) -> None:
        """Check now whether the database answers: another thread lost its connection."""
        if not self.outage.failures:
            self.next_renewal = 0.0

    def _open_probe(self) -> Probe | None:
        port = self.options.probe_port
        if port is None:
            return None
        try:
            return Probe(self.scoreboard, port, self.options.silent_seconds, self.options.live_seconds)
        except (OSError, RuntimeError) as error:
            logger.error("--probe-port %d cannot be used: %s; the worker runs without probes", port, error)
            return None

    def _living(self) -> list[tuple[int, str]]:
        """Index and name of each child that is alive and not stopped by a signal."""
        # pid_exists(), too: the supervisor, which notices deaths, may itself be stopped.
        return [
            (index, self.options.child_name(index, slot.generation))
            for index, slot in enumerate(self.scoreboard.slots)
            if slot.alive and slot.pid and not slot.paused and pid_exists(slot.pid)
        ]

    def _finished(self) -> bool:
        if os.getppid() == self.scoreboard.supervisor_pid:
            return bool(self.header.monitor_stop)
        # The supervisor died: the children drain, and no other process notices their deaths.
        self._end_late_orphans()
        for slot in self.scoreboard.slots:
            if slot.alive and not pid_exists(slot.pid):
                slot.state = State.DEAD
        return all(slot.state == State.EMPTY for slot in self.scoreboard.slots)

    def _end_late_orphans(self) -> None:
        """Kill the children of a dead supervisor after --shutdown-timeout: a job that hangs must not keep its lease."""
        now = time.monotonic()
        self.orphaned_since = now if self.orphaned_since is None else self.orphaned_since
        if self.options.on_timeout == "wait" or now - self.orphaned_since < self.options.shutdown_seconds:
            return
        for index, _ in self._living():
            self.scoreboard.slots[index].blameless = 1
            kill(self.scoreboard.slots[index].pid)

    def _duty(self, duty: Callable[[], None]) -> None:
        try:
            call_twice(duty, self.using)
        except (Error, DatabaseBusy) as error:
            self.outage.met(error)
            self.header.note_outage(self.outage.since)
            self.next_renewal = self.next_flags = self.outage.next_try
        except Exception as error:
            log_unexpected(f"{duty.__name__} leases", error)
            time.sleep(TICK_SECONDS)
        else:
            if duty == self.renew:
                self._answered()

    def _answered(self) -> None:
        now = time.monotonic()
        if self.outage.failures:
            self.outage.over()
            self.header.answers_since = now
        self.header.database_down, self.header.database_down_since, self.header.renewed_at = 0, 0.0, now

    def _given_up(self) -> bool:
        limit, since = self.options.db_retry_seconds, self.header.database_down_since
        return limit is not None and bool(since) and time.monotonic() - since > limit


class Scheduler:
    """Every worker fires all schedules, whatever its queues: the first one that locks a due schedule fires it.

    A thread of its own, which also looks for stalls: unlike housekeeping, it waits for no lock that keeps jobs from
    being claimed. With --no-scheduler it only announces. `living` returns index and name of each living child;
    `register` lets children announce their schedules again.
    """

    def __init__(
        self,
        options: Options,
        living: Callable[[], list[tuple[int, str]]],
        doubt: Callable[[], None],
        dispatch: Dispatch | None,
        stalls: StallWatch,
        register: Callable[[Iterable[int]], None],
    ) -> None:
        self._register = register
        self._living, self._using, self._fires = living, options.database, options.scheduler
        self._stalls, self._begun = stalls, time.monotonic()
        self._looks, self._failing = firing.Looks(), set[str]()
        self._next_stalls = self._begun + stalls.interval_seconds
        self._next_announcement = self._next_look = 0.0
        self.thread = DutyThread("schedules", self.round, options.database, doubt, dispatch)

    def round(self) -> None:
        now = time.monotonic()
        if now >= self._next_announcement:
            self._next_announcement = now + random.uniform(0.8, 1.0) * versions.ANNOUNCE_SECONDS
            self.thread.do(self.announce, "announce schedules")
        if self._fires and now >= self._next_look:
            self._next_look = now + random.uniform(0.8, 1.0) * DUE_SECONDS
            self.thread.do(self.fire, "fire schedules")
        if now >= self._next_stalls:
            self._next_stalls = now + random.uniform(0.8, 1.0) * self._stalls.interval_seconds
            self.thread.do(self._stalls.look, "look for stalls")

    def announce(self) -> None:
        """Note which versions of schedules the children have, and put those in force that have to be."""
        if living := self._living():
            announced = worker_rows.schedules_of([name for _, name in living], using=self._using)
            if not versions.keep_announced(sorted(announced), self._using):
                self._register(index for index, _ in living)
        versions.settle(self._using, self._failing)
        # After a time without any worker, the workers of all versions first have the time to announce theirs.
        if self._fires and time.monotonic() - self._begun > versions.RETIRE_SECONDS:
            versions.retire(self._using)

    def fire(self) -> None:
        """Add the jobs of the ticks that are due."""
        done = firing.fire_due(self._using, self._looks)
        if done.jobs:
            logger.debug("schedules: added %s", count_of(done.jobs, "job"))
        if done.more:
            self._next_look = 0.0
            self.thread.next_soon(0.01)


class Listener:
    """Listens on one connection of its own, until its process ends."""

    def __init__(self, options: Options, wakeups: WakeupPipes) -> None:
        self._options, self._wakeups = options, wakeups
        self._outage = Outage(
            "the monitor", "receive wake-ups", options.database, most_seconds=URGENT_SECONDS, meanwhile="workers poll"
        )

    def start(self) -> None:
        """Listen in a daemon thread, if there is a notifier and children may be idle."""
        if self._options.once or self._options.drain:
            return
        notifier = wakeup.notifier_of(self._options.database)
        if notifier is not None:
            try:
                threading.Thread(target=self._run, args=(notifier,), name="listener", daemon=True).start()
            except RuntimeError as error:
                # A monitor that cannot listen still renews leases.
                logger.warning("wake-ups are not received, workers poll: %s", error)

    def _run(self, notifier: Notifier) -> None:
        while True:
            subscription: Subscription | None = None
            try:
                subscription = notifier.subscribe()
                self._outage.over()
                # Wake-ups sent before the subscription were lost.
                self._wakeups.wake()
                self._listen(subscription)
            except NotSupported as error:
                logger.warning("wake-ups are not received: %s", error)
                return
            except Exception as error:
                # A driver may raise any exception; without wake-ups the children still poll.
                self._outage.met(error)
            finally:
                self._close(subscription)
            time.sleep(max(0.0, self._outage.next_try - time.monotonic()))

    def _listen(self, subscription: Subscription) -> None:
        check_at, again_at = time.monotonic() + CHECK_SECONDS, math.inf
        while True:
            queues = subscription.receive(max(0.0, min(check_at, again_at) - time.monotonic()))
            served = [queue for queue in queues if self._options.selection.serves(queue)]
            for _ in served:
                self._wakeups.wake()
            if served:
                logger.debug("wake-up: a job was committed to %s", one_line(", ".join(sorted(set(served)))))
            now = time.monotonic()
            if served:
                again_at = now + QUIET_SECONDS
            elif now >= again_at:
                # Enqueuers may have suppressed wake-ups meanwhile.
                again_at = math.inf
                self._wakeups.wake_another()
            if queues:
                check_at = now + CHECK_SECONDS
            elif now >= check_at:
                check_at = now + CHECK_SECONDS
                subscription.check()

    def _close(self, subscription: Subscription | None) -> None:
        try:
            if subscription is not None:
                subscription.close()
        except Exception as error:
            logger.debug("the subscription could not be closed: %s", error)


def run_monitor(options: Options, scoreboard: Scoreboard) -> int:
    """Be the monitor process: check the database, mark the scoreboard as ready, then run; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    observe_refusals(scoreboard.redone[-1].add)
    with suppress(RuntimeError):
        # Without room for this thread, the supervisor still watches the main thread, which watches the two others.
        Watchdog(f"{options.name}:{options.boot_id}", options.lease_seconds / 2).start()
    limit_idle_transactions(options.database)
    if not scoreboard.header.ready:
        with watched(connections[options.database]):
            status = preflight(options)
        if status:
            return status
        scoreboard.header.ready = 1
    Listener(options, scoreboard.wakeups).start()
    job_stats.start(options.database)
    # Receivers are code of the project: one that sends mail must not delay renewals.
    dispatcher = SignalDispatcher()
    signals.dispatch_via(dispatcher.dispatch)
    status = Monitor(options, scoreboard, dispatcher.dispatch).run()
    dispatcher.end(LAST_SECONDS)
    recorder.close()
    job_stats.close()
    return status
