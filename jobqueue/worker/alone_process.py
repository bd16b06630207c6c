"""A process of a worker that runs one job which is to run alone, and then ends.

It has a slot on the scoreboard as a child has. So the monitor renews its lease, kills it at its hard limit, and charges
the job if the process dies; the supervisor waits for it when the worker stops.
"""

from __future__ import annotations

import logging
import os
import signal

from django.db import Error

from jobqueue.context.job_context import keep_log_lines
from jobqueue.db import redone
from jobqueue.dead_letters.alone import begin_alone
from jobqueue.exceptions import DatabaseBusy
from jobqueue.lockstats import recorder
from jobqueue.stats import recorder as job_stats
from jobqueue.tasks import registry
from jobqueue.worker.alone import perform_alone
from jobqueue.worker.run import job_fork
from jobqueue.worker.shared import stack_dump
from jobqueue.worker.shared.scoreboard import Exit, Scoreboard, State, Stop
from jobqueue.worker.shared.watchdog import Watchdog
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")


def run_alone_child(options: Options, index: int, scoreboard: Scoreboard) -> int:
    """Run the job that has waited longest for a process of its own; returns the exit status."""
    slot = scoreboard.slots[index]
    name = options.child_name(index, slot.generation)
    slot.pid = os.getpid()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The supervisor waits for the job. Not SIG_IGN, which programs that the job executes would inherit.
        signal.signal(number, lambda *_: None)
    stack_dump.print_at_sigquit()
    job_fork.guard()
    keep_log_lines()
    redone.observe(scoreboard.redone[index].add)
    list(registry.discover())
    try:
        serves, seconds = options.selection.serves, options.lease_seconds
        lease = begin_alone(serves, worker=name, lease_seconds=seconds, using=options.database)
    except (Error, DatabaseBusy) as error:
        logger.warning("no job that is to run alone could be claimed: %s; trying again", error)
        lease = None
    if lease is not None:
        logger.warning("job %d runs alone in process %d", lease.job_id, slot.pid)
        slot.state, slot.claimed = State.RUNNING, slot.claimed + 1

        def asked_to_stop() -> bool:
            return scoreboard.header.stop != Stop.RUN or os.getppid() != scoreboard.supervisor_pid

        watchdog = Watchdog(name, seconds / 2)
        job_stats.start(options.database)
        perform_alone(lease, scoreboard.lease_slots[index][0], slot, asked_to_stop, watchdog)
        recorder.close()
        job_stats.close()
    # Not DONE: the slot may be used again.
    slot.exit = Exit.STOPPED
    return 0
