"""The parent: starts and replaces processes, forwards signals. It runs no user code and opens no connection.

With no connection and no thread of its own, fork is always safe here, and neither a hanging database nor a job can
keep it from answering a signal.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from django.db import connections

from jobqueue.worker.child.process import run_child
from jobqueue.worker.log_writer import LogWriter
from jobqueue.worker.monitor.monitor import CONNECTION_LOST, run_monitor
from jobqueue.worker.monitor.preflight import UNREACHABLE
from jobqueue.worker.monitor_watch import MonitorWatch
from jobqueue.worker.shared.processes import Forker
from jobqueue.worker.shared.scoreboard import Exit, Scoreboard, State, Stop
from jobqueue.worker.shared.worker_options import Options
from jobqueue.worker.status import log_status

logger = logging.getLogger("jobqueue.worker")

WAIT_SECONDS = 0.5
SETTLE_SECONDS = 5.0  # how long the monitor gets to give leases back after a kill
# A child that dies at once, time after time, is not started again in a tight loop.
SHORT_LIFE_SECONDS = 1.0
MONITOR_SECONDS = 1.0  # monitors are started no more often than this
ALIVE = (State.STARTING, State.RUNNING)


class Supervisor:
    """runworker's parent process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        # What a child may hold: what it claims ahead, as much again whose end is not written yet, and its coroutines.
        lease_slots = 2 * (options.concurrency + 2 * options.batch_size + options.async_concurrency)
        self.scoreboard = Scoreboard(options.processes, lease_slots)
        self.forker, self.log_writer = Forker(), LogWriter()
        self.monitor_pid = 0
        self.monitor_over = self.monitor_lost = False
        self.watch = MonitorWatch(self.scoreboard.header)
        self.monitor_not_before = 0.0
        self.monitor_stopped_at: float | None = None
        self.status = 0
        self.forced = 0
        self.deadline: float | None = None
        self.over = [False] * options.processes
        self.not_before = [0.0] * options.processes
        self.short_lives = [0] * options.processes
        self.leave_by: float | None = None
        self.reload = False
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> int:
        """Run until all children have ended; the exit status of the command."""
        connections.close_all()
        self._listen()
        try:
            self._run()
        finally:
            self.log_writer.end()
        if self.forced:
            # While it ends, the interpreter gives signals their default back: another one would change the status.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            return 128 + self.forced
        if self.reload:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        failed = sum(slot.failed for slot in self.scoreboard.slots)
        return self.status or (5 if self.options.fail_on_error and failed else 0)

    def _run(self) -> None:
        while self._preparing():
            self._keep()
            self._wait()
        while not self._all_over():
            self._keep()
            for index in range(self.options.processes):
                self._start(index)
            self._wait()
            self._enforce()
            if self.leave_by is not None and time.monotonic() > self.leave_by:
                logger.error("no monitor, or no database; leases that could not be given back will run out")
                break
        self._end_monitor()

    def _preparing(self) -> bool:
        header = self.scoreboard.header
        # Told to stop: nobody holds a lease yet, and a server that does not answer must not keep us.
        return not (header.ready or self.monitor_over or header.stop != Stop.RUN)

    def _all_over(self) -> bool:
        if not self.monitor_pid and not self.scoreboard.header.ready:
            return True
        slots = self.scoreboard.slots
        stopping = self.scoreboard.header.stop != Stop.RUN
        return all(r.state == State.EMPTY and (stopping or self.over[i]) for i, r in enumerate(slots))

    def _keep(self) -> None:
        self.log_writer.start(self.forker)
        now = time.monotonic()
        if self.monitor_stopped_at is not None and now - self.monitor_stopped_at > self.options.heartbeat_seconds:
            # Frozen: all leases would run out while the children work. They are still good for most of a lease.
            self.monitor_stopped_at = None
            with suppress(ProcessLookupError):
                os.kill(self.monitor_pid, signal.SIGKILL)
        if (
            self.monitor_pid
            and self.scoreboard.header.ready
            and self.watch.silent_seconds() > self.options.silent_seconds
        ):
            self._end_hanging_monitor()
        if self.monitor_pid or self.monitor_over or now < self.monitor_not_before or not self.forker.ready:
            return
        self.monitor_pid = self.forker.fork(run_monitor, self.options, self.scoreboard)
        self.monitor_not_before = now + MONITOR_SECONDS
        self.watch.begin()

    def _end_hanging_monitor(self) -> None:
        """Its connection waits for an answer that may never come; another monitor has another one."""
        silent = self.options.silent_seconds
        with suppress(ProcessLookupError):
            os.kill(self.monitor_pid, signal.SIGKILL)
        self.monitor_lost = self.watch.note_outage(silent, self.options.db_retry_seconds)
        logger.error("the monitor has waited for an answer of the database for %.0f s; replacing it", silent)

    def _start(self, index: int) -> None:
        slot: Any = self.scoreboard.slots[index]
        idle = slot.state != State.EMPTY or self.over[index] or self.scoreboard.header.stop != Stop.RUN
        now = time.monotonic()
        if idle or not self.monitor_pid or now < self.not_before[index] or not self.forker.ready:
            return
        self.scoreboard.fill(index)
        slot.started = now
        slot.pid = self.forker.fork(self._be_child, index)
        if not slot.pid:
            slot.state = State.EMPTY

    def _be_child(self, index: int) -> int:
        self.log_writer.leave()
        return run_child(self.options, index, self.scoreboard)

    def _listen(self) -> None:
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_restart)
        signal.signal(signal.SIGUSR1, lambda *_: log_status(self.options, self.scoreboard))
        signal.signal(signal.SIGQUIT, lambda *_: self._signal_children(signal.SIGQUIT))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _on_stop(self, number: int, _frame: Any) -> None:
        header: Any = self.scoreboard.header
        if header.stop != Stop.RUN:
            self.forced = number
            header.stop = Stop.LEAVE
            return
        self.reload = False
        self._drain()
        logger.warning(
            "%s: stopping; running jobs may finish for %g s, a second signal ends them now",
            signal.Signals(number).name,
            self.options.shutdown_seconds,
        )

    def _drain(self) -> None:
        self.scoreboard.header.stop = Stop.DRAIN
        if self.options.on_timeout == "release":
            self.deadline = time.monotonic() + self.options.shutdown_seconds
        self._signal_children(signal.SIGTERM)

    def _on_restart(self, *_: Any) -> None:
        self._signal_children(signal.SIGTERM)
        logger.warning("SIGHUP: children finish what they run and are replaced")

    def _wait(self) -> None:
        settling = any(slot.state == State.DEAD for slot in self.scoreboard.slots)
        with suppress(InterruptedError):
            select.select([self._wake_read], [], [], 0.02 if settling else WAIT_SECONDS)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_change(pid, status)

    def _on_change(self, pid: int, status: int) -> None:
        if pid == self.log_writer.pid and not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
            self.log_writer.ended()
        if pid == self.monitor_pid:
            self.monitor_stopped_at = time.monotonic() if os.WIFSTOPPED(status) else None
            if not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                self._on_monitor_end(os.waitstatus_to_exitcode(status))
            return
        for index, slot in enumerate(self.scoreboard.slots):
            if slot.pid == pid and slot.state in ALIVE:
                if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                    slot.paused = int(os.WIFSTOPPED(status))
                else:
                    self._on_child_end(index, slot, status)

    def _on_child_end(self, index: int, slot: Any, status: int) -> None:
        slot.wait_status, slot.room = status, 0
        crashed, pid = slot.exit == Exit.CRASHED and not slot.blameless, slot.pid
        if crashed:
            short = time.monotonic() - slot.started < SHORT_LIFE_SECONDS
            self.short_lives[index] = self.short_lives[index] + 1 if short else 0
            penalty = 0.1 * 2 ** min(self.short_lives[index], 6) if self.short_lives[index] > 1 else 0.0
            self.not_before[index] = time.monotonic() + penalty
        if slot.exit == Exit.CROWDED:
            self.forker.refuse("there is no room for its threads")
        self.over[index] = slot.exit == Exit.DONE
        if slot.exit == Exit.REFUSED and self.scoreboard.header.stop == Stop.RUN:
            self.status = UNREACHABLE
            self._drain()
        if slot.exit == Exit.RELOAD and self.scoreboard.header.stop == Stop.RUN:
            logger.warning("code has changed; starting again")
            self.reload = True
            self._drain()
        # All that is to be done first; then words.
        slot.state = State.DEAD
        if crashed:
            code = os.waitstatus_to_exitcode(status)
            logger.error("worker process %d ended unexpectedly (%s)", pid, code if code >= 0 else f"signal {-code}")

    def _on_monitor_end(self, code: int) -> None:
        self.monitor_pid = 0
        code = CONNECTION_LOST if self.monitor_lost else code
        self.monitor_over = not self.scoreboard.header.ready or code == CONNECTION_LOST
        if not self.scoreboard.header.ready:
            self.status = code if code > 0 else 1
        elif code == CONNECTION_LOST:
            logger.error("the database was unreachable for longer than --db-retry; leaving")
            self.status = CONNECTION_LOST
            self._kill_children()
            for slot in self.scoreboard.slots:
                slot.state = State.EMPTY
            self.scoreboard.header.stop = Stop.LEAVE
        else:
            logger.error("the monitor process ended unexpectedly (%d); starting another", code)

    def _enforce(self) -> None:
        """The second signal, and the end of --shutdown-timeout: kill, then the monitor gives everything back."""
        late = self.deadline is not None and time.monotonic() > self.deadline
        stopping = self.scoreboard.header.stop != Stop.RUN
        if self.scoreboard.header.stop == Stop.LEAVE or late:
            self._kill_children()
        # Nobody is left who could give leases back, or he may not get the time he needs.
        alone = stopping and not self.monitor_pid and not self._living()
        if self.scoreboard.header.stop == Stop.LEAVE or late or alone:
            self.leave_by = self.leave_by or time.monotonic() + SETTLE_SECONDS

    def _kill_children(self) -> None:
        for slot in self._living():
            if not slot.blameless:
                # Not the jobs' doing: what runs is given back without using an attempt.
                slot.blameless = 1
                with suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)

    def _signal_children(self, number: int) -> None:
        for slot in self._living():
            with suppress(ProcessLookupError):
                os.kill(slot.pid, number)

    def _living(self) -> list[Any]:
        return [slot for slot in self.scoreboard.slots if slot.state in ALIVE and slot.pid]

    def _end_monitor(self) -> None:
        self.scoreboard.header.monitor_stop = 1
        until = time.monotonic() + 5
        while self.monitor_pid and time.monotonic() < until:
            self._wait_monitor()
        if self.monitor_pid:
            with suppress(ProcessLookupError):
                os.kill(self.monitor_pid, signal.SIGKILL)

    def _wait_monitor(self) -> None:
        with suppress(ChildProcessError):
            if not os.waitpid(self.monitor_pid, os.WNOHANG)[0]:
                time.sleep(0.02)
                return
        self.monitor_pid = 0
