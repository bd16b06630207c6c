"""The main thread of a child: it claims jobs, gives them to the job threads, and waits. The settler writes outcomes.

Recycling says when the child is to be replaced: for its memory, jobs or time, for threads that hang, or in development
for changed code.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Mapping

from django.apps import apps
from django.db import Error
from django.utils.autoreload import StatReloader

from jobqueue import transitions
from jobqueue.base.durations import format_seconds
from jobqueue.db import fault_vendor
from jobqueue.exceptions import DatabaseBusy
from jobqueue.gates.rules import Rules, forget_rules, fresh_rules, rules
from jobqueue.gates.timing import any_in_effect
from jobqueue.log_format import one_line
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.worker.child.child import Child
from jobqueue.worker.child.fetcher import Fetcher
from jobqueue.worker.child.settler import Settler
from jobqueue.worker.run.attempt import running
from jobqueue.worker.shared.processes import rss_bytes
from jobqueue.worker.shared.scoreboard import Exit, ProcessSlot, Stop, Winding
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

HOT_SECONDS = 0.0025  # between two looks at the queues right after there was work
HOT_FOR_SECONDS = 1.0  # after the last work
HOT_SHARE = 0.02  # then, for a second, this much of the time since: frequent jobs are looked for often
QUIET_SECONDS = 10.0  # after this long without work, the shorter half of the idle pauses is left out
STILL_FIRST_SECONDS, STILL_SECONDS = 0.3, 10.0  # when, and how often a stop names the jobs that it waits for
STILL_MAX = 10
#: by how much sooner a child may be replaced than asked for
JITTER = 0.2
CODE_SECONDS = 1.0  # between two looks at the files of the code
FULL_SECONDS = 0.2  # how long to wait when no more jobs may be claimed; the pool wakes the loop earlier


class Loop:
    """Works until the supervisor, or a reason of the child's own, ends it. `register` adds it to the worker table."""

    def __init__(self, child: Child, register: Callable[[], object]) -> None:
        self._register = register
        self.child, self.options, self.pool, self.slot = child, child.options, child.pool, child.slot
        self.notified = False
        self.settler = Settler(child, threads=1 if fault_vendor(child.using).single_writer else 2)
        self.fetcher = Fetcher(child, self.settler)
        self.recycling = Recycling(child.options, child.slot)
        self.started = self.slot.looked_at = time.monotonic()
        self._rules: Rules | None = None
        self._rules_turn = child.header.rules_turn
        self._name_at = 0.0

    def run(self) -> Exit:
        """Work; returns the reason for the end."""
        child, pool, reason = self.child, self.pool, Exit.STOPPED
        while True:
            child.stopping = child.stopping or self._told_to_stop()
            if not child.stopping and (end := self._own_end()) is not None:
                reason, child.stopping = end, True
            self._give_back(pool.take_refused())
            if child.stopping or self._winding():
                self.slot.room = 0
                self._give_back(pool.take_back())
                if child.stopping and not pool.held:
                    return reason
                self._name_running()
                self.slot.looked_at = time.monotonic()
                pool.wait(0.05)
                continue
            self._give_back(pool.take_back_late(self.settler.mean_run_seconds or 0.0))
            self._look_at_rules()
            self._register_again()
            # Read before the claim: a job that ends after it may have enqueued new ones.
            was_idle = not pool.held
            claimed = self._claim(notified=self.notified)
            if not claimed and self.notified:
                # Perhaps the job is in a queue whose name is new.
                self.notified = False
                self.options.selection.forget()
                claimed = self._claim()
            if not self.fetcher.outage.unanswered:
                self.slot.looked_at = time.monotonic()
            if was_idle and self._drained():
                reason, child.stopping = self._done("nothing is due"), True
                continue
            pool.wait(self._pause(claimed))

    def notify(self) -> None:
        """Look at the queues now: a job was committed. Safe in any thread."""
        self.notified = True
        self.pool.wake()

    def opened(self, counts: Mapping[str, int]) -> None:
        """Claim soon from these queues: gates of so many of their jobs were opened. Safe in any thread."""
        self.fetcher.opened.add(counts)
        self.pool.wake()

    def unreachable(self) -> dict[str, str]:
        """Which work waits until the database can be reached: "claim", "finish", with codes of the errors."""
        outages = {"finish": self.settler.outage, "claim": self.fetcher.outage}
        return {what: outage.code for what, outage in outages.items() if outage.code}

    def stop(self) -> None:
        """Stop claiming, finish what runs, give the rest back. Safe in a signal handler."""
        self.child.stopping = True
        self.pool.wake()

    def _register_again(self) -> None:
        """Write again what this process wrote at its start, if the monitor has seen that it is gone."""
        if self.slot.unlisted:
            logger.warning(
                "%sits row in the table of workers, or a schedule that it has announced, is gone, as after a restored "
                "back-up; it writes them again",
                self.child.label,
            )
            self._register()
            self.slot.unlisted = 0

    def _told_to_stop(self) -> bool:
        # With another parent the supervisor has died, and no process would replace a monitor that dies.
        return self.child.header.stop != Stop.RUN or os.getppid() != self.child.supervisor_pid

    def _winding(self) -> bool:
        """True if this child must not start jobs; the monitor kills it once the running ones finish."""
        if self.slot.winding == Winding.ASKED and self.pool.loop_runs():
            self.slot.winding = Winding.ANSWERED
        return bool(self.slot.winding)

    def _name_running(self) -> None:
        """Log which jobs the stop of the worker waits for, soon and then every STILL_SECONDS."""
        now = time.monotonic()
        if self.child.header.stop != Stop.DRAIN or now < self._name_at:
            return
        # Not at once: most jobs end soon.
        first, self._name_at = not self._name_at, now + STILL_SECONDS
        if first:
            self._name_at = now + STILL_FIRST_SECONDS
            return
        found = sorted(running.copy(), key=lambda attempt: attempt.begun)
        for attempt in found[:STILL_MAX]:
            line = f"still runs: {attempt}, for {format_seconds(now - attempt.begun)}"
            logger.warning("%s%s", self.child.label, one_line(line))
        if len(found) > STILL_MAX:
            logger.warning("%sand %d more", self.child.label, len(found) - STILL_MAX)

    def _own_end(self) -> Exit | None:
        options, now = self.options, time.monotonic()
        if self.child.quota == 0:
            return self._done("it has run its number of jobs") if not self.pool.held else None
        if options.max_seconds is not None and now - self.started >= options.max_seconds:
            return self._done("its --max-time is over")
        idle = not self.pool.held and now - self._last_work()
        if options.idle_exit_seconds is not None and idle and idle >= options.idle_exit_seconds:
            return self._done("it was idle for its --idle-exit")
        return self.recycling.due()

    def _done(self, why: str) -> Exit:
        logger.info("%s: %s; leaving", self.child.name, why)
        return Exit.DONE

    def _last_work(self) -> float:
        return max(self.fetcher.last_claim, self.settler.last_written)

    def _drained(self) -> bool:
        return (self.options.drain or self.options.once) and self.fetcher.empty and not self.pool.held

    def _pause(self, claimed: int | None) -> float:
        if claimed is None:
            soon = self.fetcher.opened.wait_seconds
            return FULL_SECONDS if soon is None else min(FULL_SECONDS, soon)
        if self.fetcher.outage.failures:
            return max(HOT_SECONDS, self.fetcher.outage.next_try - time.monotonic())
        if self.fetcher.more:
            return 0.0
        idle = time.monotonic() - self._last_work()
        if claimed or idle < HOT_FOR_SECONDS or self.slot.hot:
            return max(HOT_SECONDS, HOT_SHARE * idle)
        low, high = self.options.poll_low_seconds, self.options.poll_high_seconds
        if self.pool.waiting:
            high = min(high, FULL_SECONDS)
        return random.uniform(low if idle < QUIET_SECONDS else (low + high) / 2, high)

    def _look_at_rules(self) -> None:
        """Let no job start that was claimed before it was paused, or before its breaker opened."""
        if (turn := self.child.header.rules_turn) != self._rules_turn:
            self._rules_turn = turn
            forget_rules()
        known = fresh_rules(self.child.using)
        if known is None:
            with self.child.watched():
                known = rules(self.child.using)
        self.pool.rules = known
        if self.pool.rules is not self._rules:
            self._rules = self.pool.rules
            self.slot.ruled = int(any_in_effect(self._rules))
        self.slot.breakers_open = len(self.pool.rules.breakers)

    def _claim(self, *, notified: bool = False) -> int | None:
        # Before the look: who commits a job after it may leave this child alone only if another look follows soon.
        self.slot.hot = int(time.monotonic() - self._last_work() < HOT_FOR_SECONDS)
        with self.child.watched():
            return self.fetcher.claim(notified=notified)

    def _give_back(self, leases: list[Lease]) -> None:
        if not leases:
            return
        self.slot.claimed -= len(leases)
        self.child.use_quota(-len(leases))
        try:
            with self.child.turn, self.child.watched():
                transitions.release_many(leases)
        except (Error, DatabaseBusy) as error:
            logger.warning(
                "%d unstarted jobs could not be released: %s; their leases run out, or end with this process",
                len(leases),
                error,
            )
        else:
            detail.debug("%sgave back %d jobs that were not started", self.child.label, len(leases))
        self.pool.settled(leases)


class Recycling:
    """Knows whether one child is to be replaced. The loop then drains, and the supervisor starts the next process."""

    def __init__(self, options: Options, slot: ProcessSlot) -> None:
        self._rss_bytes_max, self._jobs_max = options.max_rss_bytes, options.recycle_jobs
        # The slot continues the counts of earlier processes.
        self._slot, self._ended_before = slot, slot.finished
        # Up to a fifth sooner, drawn per child: children that started together must not end together.
        life = options.recycle_seconds
        self._until = None if life is None else time.monotonic() + life * random.uniform(1 - JITTER, 1.0)
        self._hung = False
        self._code = ChangedCode() if options.reload else None

    def note_hung_threads(self) -> None:
        """Record that threads of this process hang for ever. Safe in any thread."""
        self._hung = True

    def due(self) -> Exit | None:
        """Why the child must be replaced now; None while it may continue."""
        ended = self._slot.finished - self._ended_before
        if self._jobs_max is not None and ended >= self._jobs_max:
            return Exit.RECYCLE_JOBS
        if self._until is not None and time.monotonic() >= self._until:
            return Exit.RECYCLE_TIME
        # A child that is too large from the start runs a job first, or its successors would do no work at all.
        if self._rss_bytes_max is not None and ended and rss_bytes(os.getpid()) > self._rss_bytes_max:
            return Exit.RECYCLE
        if self._hung:
            return Exit.RECYCLE_RELAY
        return Exit.RELOAD if self._code is not None and self._code.found() else None


class ChangedCode:
    """Notices changes of files: of the modules that were loaded when it was made, of those whose import failed, and of
    each <app>/tasks.py, also one that is not there yet."""

    def __init__(self) -> None:
        self._reloader = StatReloader()
        self._not_loaded = {os.path.join(config.path, "tasks.py") for config in apps.get_app_configs()}
        self._not_loaded |= registry.failed_files()
        self._known = self._times()
        self._next = 0.0

    def found(self) -> bool:
        """Whether such a file has changed since; reads the files at most once a second."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + CODE_SECONDS
        found = self._times()
        return any(found.get(path) != mtime for path, mtime in self._known.items())

    def _times(self) -> dict[str, float | None]:
        times: dict[str, float | None] = {path: _mtime(path) for path in self._not_loaded}
        return times | {str(path): mtime for path, mtime in self._reloader.snapshot_files()}


def _mtime(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
