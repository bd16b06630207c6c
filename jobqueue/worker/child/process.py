"""A child process: takes its name, finds its tasks, runs its loop, says why it ended."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import Error, connections

from jobqueue import signals, wakeup
from jobqueue.context import log as job_log
from jobqueue.db import fault_vendor
from jobqueue.exceptions import DatabaseBusy
from jobqueue.lockstats import recorder
from jobqueue.maintenance import worker_rows
from jobqueue.tasks import registry
from jobqueue.worker.child.lock_report import LockReport
from jobqueue.worker.child.loop import Loop
from jobqueue.worker.child.relay_thread import Relaying
from jobqueue.worker.run import job_fork, task_signals
from jobqueue.worker.shared import stack_dump
from jobqueue.worker.shared.scoreboard import Exit, Scoreboard, State, Stop
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


def run_child(options: Options, index: int, scoreboard: Scoreboard) -> int:
    """Be child `index` until told to stop; the exit status. Never returns to the supervisor's code."""
    slot: Any = scoreboard.slots[index]
    name = options.child_name(index, slot.generation)
    slot.pid = os.getpid()
    # Ctrl-C reaches the whole group; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stack_dump.print_at_sigquit()
    job_fork.guard()
    job_log.install()
    modules = list(registry.discover())
    tasks, queues = registry.names()
    if index == 0 and slot.generation == 1:
        logger.info("tasks: %d in %s; handlers for: %s", len(tasks), _or(modules), _or(queues))
        if not tasks and not queues:
            logger.warning("0 tasks registered: is your app in INSTALLED_APPS, and are its tasks in <app>/tasks.py?")
    registered = _register(options, name, scoreboard)
    if registered is not None:
        slot.exit = registered
        return 0
    end = _work(options, index, name, scoreboard)
    slot.exit = end
    with suppress(Error, DatabaseBusy):
        worker_rows.retire(name, _ENDINGS[end], using=options.database)
    return 0


def _work(options: Options, index: int, name: str, scoreboard: Scoreboard) -> Exit:
    try:
        loop = Loop(options, index, name, scoreboard)
        scoreboard.wakeups.watch(index, loop.notify)
        dispatcher = SignalDispatcher()
        dispatcher.start()
    except RuntimeError as error:
        logger.debug("%s cannot start its threads: %s", name, error)
        return Exit.CROWDED
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    wakeup.on_notify(partial(_answer, options, index, scoreboard))
    scoreboard.slots[index].state = State.RUNNING
    task_signals.dispatch_via(dispatcher)
    signals.dispatch_via(dispatcher.dispatch)
    relaying = Relaying(options.database, on_hung=loop.recycling.note_hung_threads)
    relaying.start()
    recorder.report_to(LockReport(scoreboard.slots[index]))
    try:
        return loop.run()
    finally:
        relaying.stop()
        dispatcher.end()
        signals.dispatch_via(None)
        recorder.close()


def _answer(options: Options, index: int, scoreboard: Scoreboard, queue: str, using: str) -> None:
    """A job of this process has committed a new one: it needs no messenger to be heard here."""
    if using == options.database and options.selection.serves(queue):
        scoreboard.wakeups.wake(first=index)


def _register(options: Options, name: str, scoreboard: Scoreboard) -> Exit | None:
    """Add this process to the worker table, however long the database is away; else why it will not run."""
    parent = scoreboard.supervisor_pid
    while scoreboard.header.stop == Stop.RUN and os.getppid() == parent:
        try:
            worker_rows.register(
                name,
                supervisor_pid=parent,
                boot_id=options.boot_id,
                queues=str(options.selection),
                concurrency=options.concurrency,
                heartbeat_seconds=options.heartbeat_seconds,
                using=options.database,
            )
            return None
        except (Error, DatabaseBusy) as error:
            if isinstance(error, Error) and fault_vendor(options.database).fault(error) is None:
                logger.error("%s cannot register: %s. Check the rights of the database account.", name, error)
                return Exit.REFUSED
            logger.warning("%s cannot register: %s; trying again", name, error)
            connections[options.database].close()
            time.sleep(random.uniform(0.5, 1.5))
    return Exit.STOPPED


def _or(names: list[str]) -> str:
    return ", ".join(names) or "none"
