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

from jobqueue import doorbell, job_log, registry, signals, workers
from jobqueue.db import cutting, fault_vendor
from jobqueue.exceptions import DatabaseBusy
from jobqueue.locks import metrics as lock_metrics
from jobqueue.worker import forked, stacks, task_signals
from jobqueue.worker.announcer import Announcer
from jobqueue.worker.board import Board, Exit, State, Stop
from jobqueue.worker.lock_report import LockReport
from jobqueue.worker.lookout import Lookout
from jobqueue.worker.loop import Loop
from jobqueue.worker.options import Options
from jobqueue.worker.relaying import Relaying

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


def run_child(options: Options, index: int, board: Board) -> int:
    """Be child `index` until told to stop; the exit status. Never returns to the supervisor's code."""
    region: Any = board.regions[index]
    name = options.child_name(index, region.generation)
    region.pid = os.getpid()
    # Ctrl-C reaches the whole group; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stacks.print_at_sigquit()
    forked.guard()
    job_log.install()
    modules = list(registry.discover())
    tasks, queues = registry.names()
    if index == 0 and region.generation == 1:
        logger.info("tasks: %d in %s; handlers for: %s", len(tasks), _or(modules), _or(queues))
        if not tasks and not queues:
            logger.warning("0 tasks registered: is your app in INSTALLED_APPS, and are its tasks in <app>/tasks.py?")
    lookout = Lookout(name, options.lease_seconds / 2)
    try:
        lookout.start()
    except RuntimeError as error:
        logger.debug("%s cannot start its threads: %s", name, error)
        region.exit = Exit.CROWDED
        return 0
    registered = _register(options, name, board)
    if registered is not None:
        region.exit = registered
        return 0
    end = _work(options, index, name, board, lookout)
    region.exit = end
    with suppress(Error, DatabaseBusy), cutting.watched(connections[options.database]):
        workers.retire(name, _ENDINGS[end], using=options.database)
    return 0


def _work(options: Options, index: int, name: str, board: Board, lookout: Lookout) -> Exit:
    try:
        loop = Loop(options, index, name, board)
        lookout.duties.append(loop.pool.enforce_limits)
        board.bells.watch(index, loop.ring)
        announcer = Announcer()
        announcer.start()
    except RuntimeError as error:
        logger.debug("%s cannot start its threads: %s", name, error)
        return Exit.CROWDED
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    doorbell.answer(partial(_answer, options, index, board))
    board.regions[index].state = State.RUNNING
    task_signals.carry(announcer)
    signals.carry(announcer.give)
    relaying = Relaying(options.database, on_worn=loop.wear.wear_out)
    relaying.start()
    lock_metrics.report_to(LockReport(board.regions[index]))
    try:
        return loop.run()
    finally:
        relaying.stop()
        announcer.end()
        signals.carry(None)
        lock_metrics.close()


def _answer(options: Options, index: int, board: Board, queue: str, using: str) -> None:
    """A job of this process has committed a new one: it needs no messenger to be heard here."""
    if using == options.database and options.selection.serves(queue):
        board.bells.ring(first=index)


def _register(options: Options, name: str, board: Board) -> Exit | None:
    """Add this process to the worker table, however long the database is away; else why it will not run."""
    parent = board.supervisor_pid
    while board.header.stop == Stop.RUN and os.getppid() == parent:
        try:
            with cutting.watched(connections[options.database]):
                workers.register(
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
