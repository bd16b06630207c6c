"""runworker --dry-run."""

from __future__ import annotations

from typing import Any

from jobqueue.log_format import one_line
from jobqueue.transitions.claiming import candidates
from jobqueue.worker.shared.worker_options import Options

SHOWN = 20


def show(options: Options, out: Any) -> None:
    """Print the jobs a worker would claim first, in order; lock and change nothing."""
    using, left = options.database, SHOWN
    for queue in options.selection.names(using):
        for level in candidates.due_levels(queue, using=using):
            for job in candidates.due(queue, level, using=using).only("id", "task", "run_at", "attempts")[:left]:
                line = f"#{job.pk}  {queue}  priority {level}  {job.task or 'handler'}  attempt {job.attempts + 1}"
                # Plain SQL may have written any name.
                out.write(one_line(line) + "\n")
                left -= 1
            if left <= 0:
                out.write("... and perhaps more\n")
                return
    if left == SHOWN:
        out.write(f"nothing is due on queues {options.selection}\n")
