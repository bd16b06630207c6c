"""The parent process: starts and replaces children, forwards signals, ends. It runs no user code.

It opens no connection and starts no thread. So it can fork at any time, and neither a database that hangs nor a job can
keep it from handling a signal.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress

from django.db import connections

from jobqueue.backoff import Backoff
from jobqueue.base.durations import format_seconds
from jobqueue.log_format import count_of
from jobqueue.worker.alone import run_alone_child
from jobqueue.worker.child.process import run_child
from jobqueue.worker.log_writer import LogWriter
from jobqueue.worker.monitor.monitor import CONNECTION_LOST, run_monitor
from jobqueue.worker.monitor.preflight import MISCONFIGURED, UNREACHABLE
from jobqueue.worker.shared.processes import Forker, end_child, kill
from jobqueue.worker.shared.scoreboard import Exit, Hold, ProcessSlot, Scoreboard, State, Stop
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

WAIT_SECONDS = 0.5
SETTLE_SECONDS = 5.0  # how long the monitor may take to release leases after children were killed
# A child that crashes sooner than this, several times in a row, is started again after a growing pause.
SHORT_LIFE_SECONDS = 1.0
PAUSE = Backoff(base_seconds=0.4, cap_seconds=6.4, jitter=0.0)
MONITOR_START_SECONDS = 1.0  # between two starts of the monitor
MONITOR_END_SECONDS = 5.0  # how long the monitor may take to end when the worker ends
# If keep() was not called for this long, the supervisor stood still, and perhaps the monitor with it.
STOOD_STILL_SECONDS = 5.0


class MonitorProcess:
    """The monitor process as the supervisor sees it: it is started, watched, and replaced if it dies, stops or hangs.

    Used by the supervisor's only thread, which calls keep() at least every few seconds.
    """

    def __init__(self, options: Options, scoreboard: Scoreboard, forker: Forker) -> None:
        self._options, self._scoreboard, self._header, self._forker = options, scoreboard, scoreboard.header, forker
        self.pid = 0
        #: the exit status of the worker, once no other monitor will be started
        self.status: int | None = None
        self._not_before = 0.0
        self._stopped_at: float | None = None
        self._out_of_time = False
        self._begin()

    def keep(self) -> None:
        """Kill a monitor that was stopped by a signal or hangs; start one if none runs."""
        now = time.monotonic()
        if self._stopped_at is not None and now - self._stopped_at > self._options.heartbeat_seconds:
            # All leases would expire while the children work. They are still valid for most of a lease.
            self._stopped_at = None
            kill(self.pid)
        if self.pid and self._header.ready and self._silent_seconds() > self._options.silent_seconds:
            self._kill_hanging()
        if self.pid or self.status is not None or now < self._not_before or not self._forker.ready:
            return
        self.pid = self._forker.fork(run_monitor, self._options, self._scoreboard)
        self._not_before = now + MONITOR_START_SECONDS
        self._begin()

    def stopped(self, stopped: bool) -> None:
        """Record that a signal stopped the process, or that it continues."""
        self._stopped_at = time.monotonic() if stopped else None

    def ended(self, code: int) -> None:
        """Record that it exited with `code`, or -signal. Sets `status` if no other monitor will be started."""
        self.pid, self._stopped_at = 0, None
        if code < 0 and not self._header.ready:
            logger.error("the monitor process was ended by signal %d before it was ready; starting another", -code)
        elif not self._header.ready:
            self.status = code or 1
        elif self._out_of_time or code == CONNECTION_LOST:
            logger.error("the database was unreachable for longer than --db-retry; leaving")
            self.status = CONNECTION_LOST
        else:
            logger.error("the monitor process ended unexpectedly (%d); starting another", code)

    def end(self) -> None:
        """Ask it to end, and kill it after MONITOR_END_SECONDS."""
        self._header.monitor_stop = 1
        if self.pid:
            end_child(self.pid, MONITOR_END_SECONDS)

    def _begin(self) -> None:
        self._ticked_at = self._header.monitor_ticked_at
        self._since = self._looked_at = time.monotonic()

    def _silent_seconds(self) -> float:
        """Seconds since its last tick, without the time in which the supervisor itself stood still."""
        now = time.monotonic()
        if self._header.monitor_ticked_at != self._ticked_at or now - self._looked_at > STOOD_STILL_SECONDS:
            self._ticked_at, self._since = self._header.monitor_ticked_at, now
        self._looked_at = now
        return now - self._since

    def _kill_hanging(self) -> None:
        """Kill it: it waits for an answer that may never come, and the next monitor opens another connection."""
        kill(self.pid)
        silent, limit = self._options.silent_seconds, self._options.db_retry_seconds
        now, since = time.monotonic(), self._header.database_down_since
        self._header.note_outage(now - silent)
        # Monitors that hang, one after the other, cannot notice this themselves.
        self._out_of_time = bool(limit is not None and since and now - since > limit)
        self._begin()
        logger.error("the monitor has waited for an answer of the database for %.0f s; replacing it", silent)


class Supervisor:
    """runworker's parent process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        # What a child may hold: what it claims ahead, as much again whose end is not written yet, and its coroutines.
        lease_slots = 2 * (options.concurrency + 2 * options.batch_size + options.async_concurrency)
        # The last slot is for a job that runs alone.
        self.scoreboard = Scoreboard(options.processes + 1, lease_slots)
        self.header = self.scoreboard.header
        self.forker, self.log_writer = Forker(), LogWriter()
        self.monitor = MonitorProcess(options, self.scoreboard, self.forker)
        self.started = time.monotonic()
        self.status = 0
        self.forced = 0
        self.deadline: float | None = None
        self.over = [False] * len(self.scoreboard.slots)
        self.not_before = [0.0] * len(self.scoreboard.slots)
        self.short_lives = [0] * len(self.scoreboard.slots)
        self.leave_by: float | None = None
        self.reload = False
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> int:
        """Run until all children have ended; returns the exit status of the command."""
        connections.close_all()
        self._listen()
        try:
            self._run()
            if self.header.ready and not self.reload:
                logger.info("%s", self._totals())
        finally:
            self.log_writer.end()
        if self.forced:
            # The interpreter restores the default handlers while it ends: another signal would change the status.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            return 128 + self.forced
        if self.reload:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        return self.status or (5 if self.options.fail_on_error and self._total("failed") else 0)

    @property
    def stopping(self) -> bool:
        """Whether the worker drains or leaves."""
        return self.header.stop != Stop.RUN

    def _total(self, name: str) -> int:
        return sum(getattr(slot, name) for slot in self.scoreboard.slots)

    def _totals(self) -> str:
        """What the worker has done, for its last line."""
        runs, failed, lost = map(self._total, ("finished", "failed", "lost"))
        text = f"{count_of(runs, 'run')} ended" if runs else "no job was run"
        text += f", {failed} of them failed" if failed else ""
        text += f", {lost} had lost their lease" if lost else ""
        return f"stopped after {format_seconds(time.monotonic() - self.started)}: {text}"

    def _run(self) -> None:
        # A worker that is to stop does not wait for the first monitor: there are no leases yet.
        while not (self.header.ready or self.monitor.status is not None or self.stopping):
            self._keep()
            self._wait()
        while not self._all_over():
            self._keep()
            for index in range(self.options.processes):
                self._start(index)
            if self.header.alone:
                self.header.alone = 0
                self._start(self.options.processes)
            self._wait()
            self._enforce()
            if self.leave_by is not None and time.monotonic() > self.leave_by:
                logger.error("leases could not be released without a monitor or a database; they will expire")
                break
        self.monitor.end()

    def _all_over(self) -> bool:
        if not self.monitor.pid and not self.header.ready:
            return True
        over = [*self.over[:-1], True]
        slots = zip(self.scoreboard.slots, over, strict=True)
        return all(slot.state == State.EMPTY and (self.stopping or is_over) for slot, is_over in slots)

    def _keep(self) -> None:
        self.log_writer.start(self.forker)
        self.monitor.keep()

    def _start(self, index: int) -> None:
        slot = self.scoreboard.slots[index]
        idle = slot.state != State.EMPTY or self.over[index] or self.stopping
        now = time.monotonic()
        if idle or not self.monitor.pid or now < self.not_before[index] or not self.forker.ready:
            return
        self.scoreboard.fill(index)
        slot.started = now
        slot.pid = self.forker.fork(self._be_child, index)
        if not slot.pid:
            slot.state = State.EMPTY

    def _be_child(self, index: int) -> int:
        self.log_writer.leave()
        run = run_alone_child if index == self.options.processes else run_child
        return run(self.options, index, self.scoreboard)

    def _wait(self) -> None:
        """Sleep until a signal arrives or for WAIT_SECONDS, then handle the processes that ended or were stopped."""
        settling = any(slot.state == State.DEAD for slot in self.scoreboard.slots)
        with suppress(InterruptedError):
            select.select([self._wake_read], [], [], 0.02 if settling else WAIT_SECONDS)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        with suppress(ChildProcessError):
            while (change := os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED))[0]:
                self._on_change(*change)

    def _on_change(self, pid: int, status: int) -> None:
        stopped = os.WIFSTOPPED(status)
        ended = not (stopped or os.WIFCONTINUED(status))
        if pid == self.log_writer.pid and ended:
            self.log_writer.ended()
        if pid == self.monitor.pid:
            if ended:
                self._on_monitor_end(status)
            else:
                self.monitor.stopped(stopped)
            return
        for index, slot in enumerate(self.scoreboard.slots):
            if slot.pid == pid and slot.alive:
                if ended:
                    self._on_child_end(index, slot, status)
                else:
                    slot.paused = int(stopped)

    def _on_child_end(self, index: int, slot: ProcessSlot, status: int) -> None:
        slot.wait_status, slot.room = status, 0
        crashed, pid = slot.exit == Exit.CRASHED and not slot.blameless, slot.pid
        if crashed:
            now = time.monotonic()
            lives = self.short_lives[index] + 1 if now - slot.started < SHORT_LIFE_SECONDS else 0
            self.short_lives[index] = lives
            self.not_before[index] = now + (PAUSE.delay_seconds(lives - 1) if lives > 1 else 0.0)
        if slot.exit == Exit.CROWDED:
            self.forker.refuse("there is no room for its threads")
        self.over[index] = slot.exit == Exit.DONE
        if slot.exit in (Exit.REFUSED, Exit.NOT_IMPORTED) and not self.stopping:
            self.status = UNREACHABLE if slot.exit == Exit.REFUSED else MISCONFIGURED
            self._drain()
        if slot.exit == Exit.RELOAD and not self.stopping:
            logger.warning("code has changed; starting again")
            self.reload = True
            self._drain()
        # Before the log line, which may take time: the monitor settles the leases now.
        slot.state = State.DEAD
        if crashed:
            code = os.waitstatus_to_exitcode(status)
            logger.error("worker process %d ended unexpectedly (%s)", pid, code if code >= 0 else f"signal {-code}")

    def _on_monitor_end(self, status: int) -> None:
        self.monitor.ended(os.waitstatus_to_exitcode(status))
        if self.monitor.status is not None:
            self.status = self.monitor.status
        if self.monitor.status == CONNECTION_LOST:
            self._kill_children()
            for slot in self.scoreboard.slots:
                slot.state = State.EMPTY
            self.header.stop = Stop.LEAVE

    def _enforce(self) -> None:
        """Kill the children after a second signal or the end of --shutdown-timeout; the monitor settles their jobs."""
        late = self.deadline is not None and time.monotonic() > self.deadline
        leaving = self.header.stop == Stop.LEAVE or late
        if leaving:
            self._kill_children()
        # Without a monitor no process can release leases, and another one may not get the time that it needs.
        if leaving or (self.stopping and not self.monitor.pid and not any(self.scoreboard.alive())):
            self.leave_by = self.leave_by or time.monotonic() + SETTLE_SECONDS

    def _kill_children(self) -> None:
        for slot in self.scoreboard.alive():
            if not slot.blameless:
                # Set first: the jobs did not cause this, and are given back without using an attempt.
                slot.blameless = 1
                kill(slot.pid)

    def _listen(self) -> None:
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_restart)
        signal.signal(signal.SIGUSR1, self._on_status)
        signal.signal(signal.SIGQUIT, lambda *_: self._signal_children(signal.SIGQUIT))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _on_stop(self, number: int, _frame: object) -> None:
        if self.stopping:
            self.forced = number
            self.header.stop = Stop.LEAVE
            return
        self.reload = False
        self._drain()
        logger.warning("%s: stopping; %s", signal.Signals(number).name, self._what_it_waits_for(number))

    def _what_it_waits_for(self, number: int) -> str:
        """What a stop waits for, and for how long. Called in a signal handler."""
        slots = [slot for lease_slots in self.scoreboard.lease_slots for slot in lease_slots]
        running = sum(slot.hold == Hold.RUNNING for slot in slots)
        if not running:
            return "no job runs"
        again = "Ctrl-C again" if number == signal.SIGINT else "a second signal"
        limit = self.options.shutdown_seconds
        most = "" if self.options.on_timeout == "wait" else f" up to {format_seconds(limit)}"
        return f"waiting{most} for {count_of(running, 'job')}, {again} ends {'it' if running == 1 else 'them'} now"

    def _drain(self) -> None:
        self.header.stop = Stop.DRAIN
        if self.options.on_timeout == "release":
            self.deadline = time.monotonic() + self.options.shutdown_seconds
        self._signal_children(signal.SIGTERM)

    def _on_restart(self, *_: object) -> None:
        self._signal_children(signal.SIGTERM)
        logger.warning("SIGHUP: children finish what they run and are replaced")

    def _on_status(self, *_: object) -> None:
        """Log one line for each child: what it does now."""
        for index, slot in enumerate(self.scoreboard.slots):
            if index == self.options.processes and not slot.alive:
                continue
            held = self.scoreboard.in_hand(index)
            running = sorted(job_id for (job_id, _), lease_slot in held.items() if lease_slot.hold == Hold.RUNNING)
            logger.warning(
                "%s: %s, pid %d, %d jobs ended, running: %s",
                self.options.child_name(index, slot.generation),
                State(slot.state).name.lower(),
                slot.pid,
                slot.finished,
                running or "none",
            )

    def _signal_children(self, number: int) -> None:
        for slot in self.scoreboard.alive():
            kill(slot.pid, number)
