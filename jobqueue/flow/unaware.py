"""Workers that do not know a limit, because they run older code or other settings: it is partial while they run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from jobqueue.db.alias import explain_missing_table
from jobqueue.gates.announced import knows
from jobqueue.models import Worker
from jobqueue.worker.shared.queue_choice import Selection, stored_selection


class Running(NamedTuple):
    """So many running workers that serve the same queues and have announced the same limits."""

    number: int
    selection: Selection
    announced: Any

    def serves(self, queue: str) -> bool:
        """Whether they claim from it."""
        return self.selection.serves(queue)


def running_workers(using: str) -> list[Running]:
    """The running workers, those that are alike together."""
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True)
    with explain_missing_table(using):
        found = list(rows.values_list("queues", "gates"))
    alike = Counter((queues, json.dumps(gates, sort_keys=True)) for queues, gates in found)
    return [Running(number, stored_selection(queues), json.loads(gates)) for (queues, gates), number in alike.items()]


def count_unaware(workers: list[Running], queue: str, task: str | None, *, set_here: bool) -> int:
    """How many of `workers` serve `queue` and do not know its limit, or that of a task in it.

    Limits set at run time are known to every worker that supports limits.
    """
    return sum(
        worker.number
        for worker in workers
        if worker.serves(queue) and (worker.announced is None if set_here else not knows(worker.announced, queue, task))
    )
