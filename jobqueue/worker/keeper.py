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
from jobqueue.conf import load
from jobqueue.db import cutting, one_writer
from jobqueue.exceptions import DatabaseBusy
from jobqueue.signals import Carrier
from jobqueue.transitions.leases import held_of, renew_free
from jobqueue.worker.announcer import Announcer
from jobqueue.worker.board import Board, Hold, State
from jobqueue.worker.flagging import flag
from jobqueue.worker.housekeeping import Housekeeping
from jobqueue.worker.listener import Listener
from jobqueue.worker.liveness import lives
from jobqueue.worker.lookout import Lookout
from jobqueue.worker.options import Options
from jobqueue.worker.overtime import Overtime
from jobqueue.worker.preflight import preflight
from jobqueue.worker.probe import Probe
from jobqueue.worker.recovery import Recovery
from jobqueue.worker.rounds import TICK_SECONDS, Rounds, again

logger = logging.getLogger("jobqueue.worker")

FLAG_SECONDS = 1.0  # what waits for a thread is looked at with every tick: once it has started it can only be asked
OVERTIME_SECONDS = 0.25  # looking at every place of the board each tick would be most of what an idle keeper costs
CONNECTION_LOST = 75
HANGS = 1
HOUSE_SILENT_SECONDS = 600.0  # what keeps house may wait for locks: six times 50 s by MySQL's default
UNLOCKED_SECONDS = 2.0  # how long to wait for the server to end the sessions of a dead child
ROUND_SECONDS = 1.0  # for what the other threads are doing at the end
LAST_SECONDS = 3.0  # for receivers of signals at the end; the supervisor waits 5 s


class Keeper:
    """One pass of every duty is a method; run() is the only loop."""

    def __init__(self, options: Options, board: Board, carrier: Carrier | None = None) -> None:
        self.options, self.board = options, board
        self.using = options.database
        self.parent = board.supervisor_pid
        self.next_renewal = self.next_flags = self.next_overtime = 0.0
        self.orphaned_since: float | None = None
        self.turn = one_writer(options.database)
        self.house = Housekeeping(options, board, self._names, self._doubt, carrier, self.turn)
        self.recovery = Recovery(options, board, UNLOCKED_SECONDS, self.house.retire, self._settling_goes_on)
        self.settling = Rounds("recovery", self._recover, self.using, self._doubt, carrier)
        self.overtime = Overtime(board)
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
        """Extend every lease of every living child; a frozen one must lose its jobs like a dead one."""
        with self.turn:
            self._renew(self._living())

    def _renew(self, living: list[tuple[int, str]]) -> None:
        asked_server = False
        for index, name in living:
            groups = defaultdict(list)
            in_hand = self.board.in_hand(index)
            asked_server = asked_server or bool(in_hand)
            # No others: of a claim whose answer was lost nobody knows, so its leases must run out.
            for lease in held_of(in_hand, worker=name, using=self.using) if in_hand else []:
                groups[load().queue_lease_seconds(lease.queue, self.options.lease_seconds)].append(lease)
            for seconds, leases in groups.items():
                asked = time.monotonic()
                for lease in renew_free(leases, lease_seconds=seconds):
                    in_hand[lease.job_id, lease.fence].renewed(lease.job_id, lease.fence, asked + seconds)
            self._tick()
        if not asked_server:
            # Still the one who finds out whether the database answers.
            with connections[self.using].cursor() as cursor:
                cursor.execute("SELECT 1")

    def flag(self) -> None:
        """Tell what children have in hand that its lease was lost or that it is to be canceled."""
        waits = False
        for index, _ in self._living():
            in_hand = self.board.in_hand(index)
            flag(in_hand, self.using)
            waits = waits or any(entry.hold == Hold.WAITING for entry in in_hand.values())
        self.next_flags = time.monotonic() + (TICK_SECONDS if waits else FLAG_SECONDS)

    def _tick(self) -> None:
        self.board.header.keeper_ticked_at = time.monotonic()

    def _hangs(self) -> bool:
        """Whether another thread waits for an answer that may never come: only a new process has new threads."""
        settling, house = self.settling.silent_seconds, self.house.rounds.silent_seconds
        if settling <= self.options.silent_seconds and house <= HOUSE_SILENT_SECONDS:
            return False
        logger.error("the keeper has waited for an answer of the database for %.0f s; it leaves", max(settling, house))
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
            return Probe(self.board, port, self.options.silent_seconds)
        except (OSError, RuntimeError) as error:
            logger.error("--probe-port %d cannot be used: %s; the worker runs without probes", port, error)
            return None

    def _living(self) -> list[tuple[int, str]]:
        found = []
        for index, region in enumerate(self.board.regions):
            alive = region.state in (State.STARTING, State.RUNNING) and region.pid and not region.paused
            # Asked, though the supervisor says so too: it may stand still, and would not notice a death.
            if alive and lives(region.pid):
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
            again(duty, self.using)
        except (Error, DatabaseBusy) as error:
            if not self.board.header.database_down_since:
                self.board.header.database_down_since = time.monotonic()
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
            if duty == self.renew:
                self._answered()

    def _answered(self) -> None:
        header, now = self.board.header, time.monotonic()
        since, header.database_down_since = header.database_down_since, 0.0
        header.database_down, header.renewed_at = 0, now
        if since:
            logger.warning("the database answers again after %.1f s", now - since)

    def _given_up(self) -> bool:
        limit, since = self.options.db_retry_seconds, self.board.header.database_down_since
        return limit is not None and bool(since) and time.monotonic() - since > limit


def run_keeper(options: Options, board: Board) -> int:
    """Check the ground, say so on the board, then keep; the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with suppress(RuntimeError):
        # Without room for it, the supervisor still looks after the main thread, and that one after two others.
        Lookout(f"{options.name}:{options.boot_id}", options.lease_seconds / 2).start()
    if not board.header.ready:
        with cutting.watched(connections[options.database]):
            status = preflight(options)
        if status:
            return status
        board.header.ready = 1
    Listener(options, board.bells).start()
    # Receivers are the project's code: one that sends mail must not keep leases from being renewed.
    announcer = Announcer()
    signals.carry(announcer.give)
    status = Keeper(options, board, announcer.give).run()
    announcer.end(LAST_SECONDS)
    return status
