"""A child process: registers itself, finds its tasks, runs its loop, and records why it ended."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from functools import partial
from threading import RLock

from django.db import Error, connections

from jobqueue import signals, wakeup
from jobqueue.context.job_context import keep_log_lines
from jobqueue.db import is_refusal
from jobqueue.db.outage import Outage
from jobqueue.db.retry import observe_refusals
from jobqueue.db.sessions import Opening, limit_idle_transactions, observe_openings
from jobqueue.db.time_limit import Watchdog, watched
from jobqueue.exceptions import DatabaseBusy
from jobqueue.gates.waiting import on_closed, on_opened
from jobqueue.lockstats import recorder
from jobqueue.lockstats.recorder import Counters
from jobqueue.log_format import count_of, one_line
from jobqueue.maintenance import worker_rows
from jobqueue.outbox.delivery_log import observe_deliveries
from jobqueue.outbox.relay import WorkerRelay
from jobqueue.schedules import versions
from jobqueue.schedules.declaring import declare_settings
from jobqueue.stats import recorder as job_stats
from jobqueue.tasks import registry
from jobqueue.worker.child.child import Child
from jobqueue.worker.child.loop import Loop
from jobqueue.worker.run import job_fork, task_signals
from jobqueue.worker.run.stacks import StackLooks
from jobqueue.worker.shared.processes import print_at_sigquit
from jobqueue.worker.shared.scoreboard import Exit, ProcessSlot, Scoreboard, State, Stop
from jobqueue.worker.shared.signal_dispatcher import SignalDispatcher
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

_ENDINGS = {
    Exit.STOPPED: "stopped",
    Exit.DONE: "done",
    Exit.RECYCLE: "recycled: over its memory limit",
    Exit.RECYCLE_JOBS: "recycled: it has run its number of jobs",
    Exit.RECYCLE_TIME: "recycled: its time is over",
    Exit.RECYCLE_RELAY: "recycled: deliveries of events hang in its threads",
    Exit.CROWDED: "the system had no room for its threads",
    Exit.RELOAD: "code has changed",
}

#: counters of jobqueue.lockstats that a slot shows as locks_NAME
_LOCK_COUNTERS = ("acquired", "failed", "contended", "reentries", "wait_us")


def run_child(options: Options, index: int, scoreboard: Scoreboard) -> int:
    """Run as child `index` until the supervisor or a limit of its own ends it; returns the exit status."""
    slot = scoreboard.slots[index]
    name = options.child_name(index, slot.generation)
    slot.pid = os.getpid()
    # Ctrl-C reaches the whole group, and only the supervisor reacts. Programs of jobs would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda *_: None)
    print_at_sigquit()
    job_fork.guard()
    keep_log_lines()
    observe_refusals(scoreboard.redone[index].add)
    observe_openings(ConnectionCounts(slot).add)
    observe_deliveries(scoreboard.retries[index].delivered)
    modules = list(registry.discover())
    if (failed := registry.failed_modules()) and not options.reload:
        return _refuse(failed, slot)
    declare_settings()
    tasks, queues = registry.names()
    if index == 0 and slot.generation == 1:
        logger.info(
            "%s in %s%s", count_of(len(tasks), "task"), _or(modules), f"; handlers for {_or(queues)}" if queues else ""
        )
        if not tasks and not queues:
            logger.warning("0 tasks registered: is your app in INSTALLED_APPS, and are its tasks in <app>/tasks.py?")
    watchdog = Watchdog(name, options.lease_seconds / 2)
    try:
        watchdog.start()
    except RuntimeError as error:
        logger.debug("%s cannot start its threads: %s", name, error)
        slot.exit = Exit.CROWDED
        return 0
    registered = _register(options, name, scoreboard)
    if registered is not None:
        slot.exit = registered
        return 0
    end = _work(options, index, scoreboard, watchdog)
    slot.exit = end
    with suppress(Error, DatabaseBusy), watched(connections[options.database]):
        worker_rows.retire(name, _ENDINGS[end], using=options.database)
    return 0


def _refuse(modules: list[str], slot: ProcessSlot) -> int:
    """End this process, whose tasks would be missing: it would put back their jobs, and look as if it worked."""
    if slot.generation == 1:
        logger.error(
            "the worker does not start: %s could not be imported, see above. Correct the error, and start it again",
            one_line(", ".join(modules)),
        )
        slot.exit = Exit.NOT_IMPORTED
        return 0
    # The code has changed since the worker started. Its other processes go on with what they have imported.
    logger.error(
        "this process ends and is started again: %s could not be imported, see above. Correct the error",
        one_line(", ".join(modules)),
    )
    return 1


def _work(options: Options, index: int, scoreboard: Scoreboard, watchdog: Watchdog) -> Exit:
    name = options.child_name(index, scoreboard.slots[index].generation)
    try:
        child = Child(options, index, scoreboard)
        loop = Loop(child, partial(_register, options, name, scoreboard))
        watchdog.duties += [child.pool.enforce_limits, StackLooks(scoreboard.stacks[index], loop.unreachable).look]
        scoreboard.wakeups.watch(index, loop.notify)
        dispatcher = SignalDispatcher()
        dispatcher.start()
    except RuntimeError as error:
        logger.debug("%s cannot start its threads: %s", name, error)
        return Exit.CROWDED
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    wakeup.on_notify(partial(_on_notify, child))
    on_closed(partial(_tell_monitor, child))
    on_opened(loop.opened)
    child.slot.state = State.RUNNING
    task_signals.dispatch_via(dispatcher)
    signals.dispatch_via(dispatcher.dispatch)
    relay = WorkerRelay(options.database, on_hung=loop.recycling.note_hung_threads)
    relay.start()
    recorder.report_to(LockReport(child.slot))
    job_stats.start(options.database)
    if index == 0 and child.slot.generation == 1:
        logger.info("%s", _readiness(options))
    try:
        return loop.run()
    finally:
        relay.stop()
        dispatcher.end()
        signals.dispatch_via(None)
        recorder.close()
        job_stats.close()


def _on_notify(child: Child, queue: str, using: str) -> None:
    """Wake a child directly, without a notifier: a job of this process has committed a new job."""
    if using == child.using and child.options.selection.serves(queue):
        logger.debug("%swake-up: a job of this process has added one to %s", child.label, one_line(queue))
        child.wakeups.wake(first=child.index)


def _tell_monitor(child: Child) -> None:
    """Let the monitor look soon whether gates may be opened, which it does not while none is closed."""
    child.header.gates_closed = 1


class ConnectionCounts:
    """Counts how often threads opened connections or were refused one, and how long they waited, in one slot."""

    def __init__(self, slot: ProcessSlot) -> None:
        self._slot = slot
        # Reentrant, because a signal handler may open a connection while this thread counts.
        self._lock = RLock()

    def add(self, opening: Opening) -> None:
        """Count one. Observes jobqueue.db.sessions."""
        with self._lock:
            self._slot.connections_opened += opening.opened
            self._slot.connections_refused += opening.refused
            self._slot.connection_wait_us += int(1e6 * opening.seconds)


class LockReport:
    """Adds the lock counters of one process to those of the earlier processes of its slot."""

    def __init__(self, slot: ProcessSlot) -> None:
        self._slot = slot
        self._before = {name: getattr(slot, f"locks_{name}") for name in _LOCK_COUNTERS}

    def __call__(self, total: Counters) -> None:
        """Add `total`. The thread that writes the counters calls this every few seconds."""
        for name, before in self._before.items():
            setattr(self._slot, f"locks_{name}", before + getattr(total, name))


def _register(options: Options, name: str, scoreboard: Scoreboard) -> Exit | None:
    """Add this process to the worker table, however long the database is unreachable.

    Returns None, or why the process must end.
    """
    parent = scoreboard.supervisor_pid
    outage = Outage(name, "register", options.database)
    while scoreboard.header.stop == Stop.RUN and os.getppid() == parent:
        if time.monotonic() < outage.next_try:
            time.sleep(0.05)
            continue
        try:
            with watched(connections[options.database]):
                worker_rows.register(
                    name,
                    supervisor_pid=parent,
                    boot_id=options.boot_id,
                    queues=str(options.selection),
                    concurrency=options.concurrency,
                    heartbeat_seconds=options.heartbeat_seconds,
                    using=options.database,
                )
                # Now: receivers of worker_started, which are code of the project, have been called.
                limit_idle_transactions(options.database)
                _announce(options, name)
            outage.over()
            return None
        except (Error, DatabaseBusy) as error:
            if is_refusal(error, options.database):
                logger.error("%s cannot register: %s. Check the rights of the database account.", name, error)
                return Exit.REFUSED
            outage.met(error)
    return Exit.STOPPED


def _announce(options: Options, name: str) -> None:
    """Announce the schedules of this process. An account that may not do that has a worker without schedules."""
    try:
        if ids := versions.announce(options.database):
            worker_rows.note(name, schedules=list(ids), using=options.database)
    except Error as error:
        if not is_refusal(error, options.database):
            raise
        logger.error("%s cannot announce its schedules, so they do not fire: %s", name, error)
    except DatabaseBusy:
        raise
    except Exception:
        logger.exception("%s cannot announce its schedules, so they do not fire; it runs jobs all the same", name)


def _readiness(options: Options) -> str:
    """How large the worker is, what it serves and when it ends: what its operator has chosen, in words."""
    size = f"{count_of(options.processes, 'process')} x {count_of(options.concurrency, 'thread')}"
    if registry.knows_coroutines():
        size += f" and {count_of(options.async_concurrency, 'coroutine')}"
    if options.once:
        until = "runs one job, then ends"
    elif options.drain:
        until = "runs what is due, then ends"
    else:
        until = "waiting for jobs, Ctrl-C stops"
    return one_line(f"{size}, {options.selection.words}; {until}")


def _or(names: list[str]) -> str:
    return ", ".join(names) or "none"
