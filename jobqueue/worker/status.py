"""What the children of a worker do now, for whoever asks the supervisor by SIGUSR1."""

from __future__ import annotations

import logging

from jobqueue.worker.shared.scoreboard import Hold, Scoreboard, State
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")


def log_status(options: Options, scoreboard: Scoreboard) -> None:
    """One line per child."""
    for index, slot in enumerate(scoreboard.slots):
        held = scoreboard.in_hand(index)
        running = sorted(job_id for (job_id, _), lease_slot in held.items() if lease_slot.hold == Hold.RUNNING)
        logger.warning(
            "%s: %s, pid %d, %d jobs ended, running: %s",
            options.child_name(index, slot.generation),
            State(slot.state).name.lower(),
            slot.pid,
            slot.finished,
            running or "none",
        )
