"""What the children of a worker do now, for whoever asks the supervisor by SIGUSR1."""

from __future__ import annotations

import logging

from jobqueue.worker.shared.scoreboard import Board, Hold, State
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")


def log_status(options: Options, board: Board) -> None:
    """One line per child."""
    for index, region in enumerate(board.regions):
        held = board.in_hand(index)
        running = sorted(job_id for (job_id, _), entry in held.items() if entry.hold == Hold.RUNNING)
        logger.warning(
            "%s: %s, pid %d, %d jobs ended, running: %s",
            options.child_name(index, region.generation),
            State(region.state).name.lower(),
            region.pid,
            region.finished,
            running or "none",
        )
