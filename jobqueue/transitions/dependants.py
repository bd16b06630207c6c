"""What the ends of nodes do to the nodes that wait for them: some are opened, and some are canceled in turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count

from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.grouping.ends import Ends, end_groups, write_ends
from jobqueue.grouping.members import is_parent
from jobqueue.grouping.nodes import behind_canceled, decide, note_ends
from jobqueue.models import GroupMember, Job
from jobqueue.models.rows import in_state
from jobqueue.signals import job_canceled
from jobqueue.transitions.leases import canceled

#: nodes that one transaction cancels because of others, so that it stays short; a sweep goes on with the rest
CANCELED_MAX = 1000
#: generations of nodes that are looked at one after another; those behind them are canceled together
LEVELS = 3
_CANCELED = GroupMember.State.CANCELED


def end_with_dependants(ends: Ends, parents: Collection[int], using: str) -> None:
    """Write the ends of members in the open transaction that ends their jobs, and all that follows from them.

    `parents`: those of them that nodes are known to wait for.
    """
    changed, late = set[int](), set[int]()
    while ends:
        if parents:
            ends = _decide_dependants(ends, parents, using, late=bool(late))
        groups, ends = write_ends(ends, late, using)
        changed |= groups
        parents = late = {job_id for by_state in ends.values() for ids in by_state.values() for job_id in ids}
    end_groups(changed, using)


def _decide_dependants(ends: Ends, parents: Collection[int], using: str, *, late: bool) -> Ends:
    """Decide the nodes that wait for those of `ends` that are in `parents`, in the open transaction that ends them.

    Returns `ends` with the nodes that are canceled because of them.
    """
    found = {group_id: {state: [*ids] for state, ids in by_state.items()} for group_id, by_state in ends.items()}
    for group_id, by_state in sorted(ends.items()):
        mine = {state: [job_id for job_id in ids if job_id in parents] for state, ids in by_state.items()}
        nodes = note_ends({state: ids for state, ids in mine.items() if ids}, using, late=late)
        if gone := decide_nodes(group_id, nodes, using):
            found[group_id].setdefault(_CANCELED, []).extend(gone)
    return found


def decide_nodes(group_id: int, nodes: Collection[int], using: str) -> list[int]:
    """Decide nodes of which no parent may be outstanding, and what follows from that; the ids of the canceled ones.

    Call it in an open transaction, and end_with_dependants() for those that it returns.
    """
    gone: list[int] = []
    for level in count(1):
        jobs = decide(group_id, nodes, using)
        nodes = _cancel(jobs, using)
        gone += [job.pk for job in jobs]
        if level == LEVELS and nodes and len(gone) < CANCELED_MAX:
            # A long chain: a level of it at a time would take nine statements a node.
            jobs = behind_canceled(group_id, nodes, CANCELED_MAX - len(gone), using)
            gone += [job.pk for job in jobs]
            nodes = sorted({*nodes, *_cancel(jobs, using)} - {*gone})
        if not nodes or len(gone) >= CANCELED_MAX:
            break
    return gone


def _cancel(jobs: Sequence[Job], using: str) -> list[int]:
    """Cancel these nodes, whose rows are locked; the ids of their children."""
    if not jobs:
        return []
    in_state([job.pk for job in jobs], Job.Status.READY, using=using).update(**canceled())
    for job in jobs if job_canceled.receivers else ():
        send_after_commit(job_canceled, Job, job_id=job.pk, queue=job.queue, task=job.task, using=using)
    return note_ends({_CANCELED: [job.pk for job in jobs if is_parent(job.options)]}, using)
