"""How many ready and scheduled jobs are held back by a gate: index entries, counted up to a cap, in few statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from jobqueue.db import vendor
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_count
from jobqueue.gates.levels import INDEX, ranks
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.ordering import KEY_GATE

#: an earlier job of its key; a limit, pause or breaker; its parents in a workflow. Held jobs are counted by live.py.
GATES = (KEY_GATE, FLOW_GATE, PARENTS_GATE)


def count_held_back(
    queues: Sequence[str], using: str, check: Callable[[], None], most: int
) -> dict[str, dict[int, int]]:
    """By queue and gate, of GATES, how many jobs wait behind it, up to `most`; what has none is not in it.

    check() is called between statements; it may raise. An index seek for each queue and gate, and an index entry for
    each job that is counted.
    """
    check()
    tops = next(ranks([(queue, Job.Status.READY, gate) for queue in queues for gate in GATES], using), [])
    check()
    found: dict[str, dict[int, int]] = {}
    runs = [{"queue": top.queue, "gate": top.gate} for top in tops]
    for count, queue, gate in _behind(using, most).seek_each(runs, 20):
        if count:
            found.setdefault(queue, {})[int(gate)] = int(count)
    return found


@cache
def _behind(using: str, most: int) -> Prepared:
    gate = Slot("gate", Job._meta.get_field("gate"))
    rows = Job.objects.using(using).filter(
        queue=UnestimatedSlot("queue", NameField()), status=Unestimated(Job.Status.READY), gate=gate
    )
    # In the order of the index: PostgreSQL could take a walk through the table for cheaper.
    ordered = vendor(using).force_index(rows.order_by("priority", "run_at", "id"), INDEX)
    return prepare_count(ordered.values_list("pk")[:most], given=[Slot("queue", NameField()), gate])
