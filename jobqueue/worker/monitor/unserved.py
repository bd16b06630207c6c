"""Log a warning while jobs wait in queues that no live worker serves, as after a typing error in --queues."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from difflib import get_close_matches

from jobqueue.db import vendor
from jobqueue.log_format import one_line
from jobqueue.models import Job, Worker
from jobqueue.transitions.claiming import candidates
from jobqueue.worker.shared.queue_choice import Selection, stored_selection
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

INTERVAL_SECONDS = 600.0
NAMES_MAX = 5
#: jobs of a queue that are counted: the cost must not grow with the backlog
COUNT_MAX = 1000


def warn(options: Options) -> None:
    """Look once: two index seeks per queue, and up to COUNT_MAX index entries of each of the first NAMES_MAX queues."""
    selection, using = options.selection, options.database
    if selection.every is not None and not selection.excluded:
        return
    # No worker need serve this queue: if a bench is killed, the next bench removes its jobs.
    waiting = [name for name in candidates.waiting_names(using=using) if name != candidates.BENCH_QUEUE]
    names = [name for name in waiting if not selection.serves(name)]
    others = _others(using) if names else []
    if names := sorted(name for name in names if not any(other.serves(name) for other in others)):
        logger.warning("%s", one_line(_words(names, selection, using)))


def _others(using: str) -> list[Selection]:
    """What the running workers serve. Text that was too long for the column counts as all queues."""
    found = set(Worker.objects.using(using).filter(stopped_at__isnull=True).values_list("queues", flat=True))
    return list(map(stored_selection, found))


def _words(names: list[str], selection: Selection, using: str) -> str:
    shown = ", ".join(f"{name} ({_count(name, using)})" for name in names[:NAMES_MAX])
    more = f" and {len(names) - NAMES_MAX} other queues" if len(names) > NAMES_MAX else ""
    text = f"jobs wait in queues that no running worker serves: {shown}{more}. This worker serves {selection.words}"
    if meant := _meant(names, selection.weights):
        return f"{text}: did you mean {meant}?"
    return f"{text}; name them in --queues here or start a worker for them."


def _meant(names: list[str], chosen: Iterable[str]) -> str | None:
    for name in chosen:
        if found := get_close_matches(name, names, n=1):
            return found[0]
    return None


def _count(queue: str, using: str) -> str:
    rows = Job.objects.using(using).filter(queue=queue, status=candidates.READY, gate=0)
    # In the order of the index, or PostgreSQL may read the whole table.
    rows = vendor(using).force_index(rows.order_by("priority", "run_at", "id"), candidates.INDEX)
    found = len(rows.values_list("pk", flat=True)[: COUNT_MAX + 1])
    return f"{COUNT_MAX}+" if found > COUNT_MAX else str(found)
