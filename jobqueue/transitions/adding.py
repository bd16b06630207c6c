"""A running node adds a node to its workflow: who waits for the running node waits for the new one, too.

The transaction locks, in this order, the row of the running job by its token, the members that the new node runs after,
and the row of the group. So the add comes before the end of the running node or not at all, each parent has ended or
is noted to have late children, and no two adds to a workflow see different names. Nodes that wait for the running one
are not decided meanwhile: it is outstanding.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import connections
from django.db.models import F

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.members import insert_members, lock_group, node_job
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.producer.insert import NewJob
from jobqueue.transitions.dependants import decide_nodes, end_with_dependants
from jobqueue.transitions.leases import Lease, held, lost

State = GroupMember.State


@dataclass(frozen=True, slots=True)
class AddedNode:
    """A node to add to a workflow. `after`: names of nodes, or the ids of their jobs. `name` None: one like `base`."""

    job: NewJob
    base: str
    name: str | None
    after: Sequence[str | int]


def add_node(lease: Lease, group_id: int, node: AddedNode) -> int:
    """Add a node to the workflow of the node that runs under `lease`; the id of its job.

    In one transaction, or in the caller's. Raises LeaseLost, and InvalidValue for a workflow that has ended or was
    canceled, a name that is taken, unknown parents, a cycle, and a dedupe key that is held; QueueFull. Nothing was
    written then.
    """
    if node.after and node.job.ordering_key is not None:
        raise InvalidValue(
            "a node with parents cannot have an ordering key: it would hold up the key until they have ended. Nothing "
            f"was written; leave the key of {node.job.task} out, and write the order with after=."
        )
    return retry_transient("enqueue", partial(_add, lease, group_id, node), using=lease.using, repeatable=False)


class NodesAddedBefore:
    """The nodes that earlier runs of a job have added: a run that adds one again gets that one. Read at once."""

    def __init__(self, lease: Lease, group_id: int) -> None:
        using = lease.using
        # The first run has none before it.
        rows = GroupMember.objects.using(using).filter(group_id=group_id, added_by=lease.job_id)
        names = dict(rows.values_list("pk", "name")) if lease.fence > 1 else {}
        jobs = Job.objects.using(using).filter(pk__in=sorted(names)).order_by("pk")
        self._nodes: dict[str, tuple[int, str | None, JSON]] = {
            str(names[job_id]): (job_id, task, payload)
            for job_id, task, payload in (jobs.values_list("pk", "task", "payload") if names else ())
        }
        #: names of those that no add() of this run has met
        self._left = dict.fromkeys(self._nodes)

    def find(self, node: AddedNode) -> int | None:
        """The id of the job of such a node: one of this name and task, or one of the same call without a name."""
        if node.name is not None:
            self._left.pop(node.name, None)
            found = self._nodes.get(node.name)
            return found[0] if found and found[1] == node.job.task else None
        given = json.loads(node.job.payload)
        for name in self._left:
            job_id, task, payload = self._nodes[name]
            if (task, payload) == (node.job.task, given) and re.fullmatch(rf"{re.escape(node.base)}(-\d+)?", name):
                del self._left[name]
                return job_id
        return None


def _add(lease: Lease, group_id: int, node: AddedNode) -> int:
    using = lease.using
    # Before the transaction: its snapshot must not be older than the lock of the group.
    parents = _parents(node.after, group_id, using)
    with vendor(using).transaction(connections[using]):
        if not held(lease).select_for_update().values_list("pk", flat=True):
            raise lost(lease, "add")
        states = _lock(parents, using)
        lock_group(group_id, using)
        # Written too: PostgreSQL then redoes another add whose snapshot is older than this one's names.
        JobGroup.objects.using(using).filter(pk=group_id).update(state=F("state"))
        children = _children(lease.job_id, using)
        if children and {*parents} - {lease.job_id}:
            _refuse_cycle(node, parents, children, group_id, using)
        name = _free_name(node.base, group_id, using) if node.name is None else node.name
        if node.name is not None and _named([name], group_id, using):
            raise InvalidValue(
                f"there is a node {name!r} in the workflow {group_id}. Nothing was written; give another name."
            )
        job = node_job(node.job, group_id, is_parent=bool(children), waits=bool(parents))
        (job_id,) = insert_members(group_id, [job], [name], using, added_by=lease.job_id)
        if parents:
            # Also of those that have ended: they may run again.
            GroupMember.objects.using(using).filter(pk__in=parents).update(late_children=True)
        pairs = [GroupParent(group_id=group_id, child_id=child, parent_id=job_id) for child in children]
        pairs += [
            GroupParent(group_id=group_id, child_id=job_id, parent_id=parent, state=state)
            for parent, state in states.items()
        ]
        GroupParent.objects.using(using).bulk_create(pairs, batch_size=vendor(using).insert_rows_max)
        ended = parents and State.OUTSTANDING not in states.values()
        if ended and (gone := decide_nodes(group_id, [job_id], using)):
            end_with_dependants({group_id: {State.CANCELED: gone}}, (), using)
        return job_id


def _parents(after: Iterable[str | int], group_id: int, using: str) -> list[int]:
    """The ids of the nodes."""
    wanted = [*dict.fromkeys(after)]
    names = [one for one in wanted if isinstance(one, str)]
    ids = [one for one in wanted if isinstance(one, int) and 0 < one < 2**63]
    known: dict[str | int, int] = dict(_named(names, group_id, using)) if names else {}
    if ids:
        rows = GroupMember.objects.using(using).filter(pk__in=ids, group_id=group_id, name__isnull=False)
        known |= {job_id: job_id for job_id in rows.values_list("pk", flat=True)}
    for one in wanted:
        if one not in known:
            raise InvalidValue(
                f"after has an unknown parent: the workflow {group_id} has no node {one!r}. Nothing was written; give "
                "names of its nodes, or ids that add() has returned."
            )
    return sorted({known[one] for one in wanted})


def _named(names: Collection[str], group_id: int, using: str) -> list[tuple[str, int]]:
    rows = GroupMember.objects.using(using).filter(group_id=group_id, name__in=names)
    return [(str(name), job_id) for name, job_id in rows.values_list("name", "pk")]


def _lock(parents: Sequence[int], using: str) -> Mapping[int, int]:
    """Lock these members; their states by their ids."""
    if not parents:
        return {}
    rows = GroupMember.objects.using(using).filter(pk__in=parents).order_by("pk").select_for_update()
    return dict(rows.values_list("pk", "state"))


def _children(job_id: int, using: str) -> list[int]:
    """The nodes that wait for a running one, but for those that it has added itself."""
    ids = GroupParent.objects.using(using).filter(parent_id=job_id).values_list("child_id", flat=True)
    found = sorted({*ids})
    if not found:
        return []
    members = GroupMember.objects.using(using).filter(pk__in=found).exclude(added_by=job_id)
    return list(members.order_by("pk").values_list("pk", flat=True))


def _refuse_cycle(
    node: AddedNode, parents: Collection[int], children: Collection[int], group_id: int, using: str
) -> None:
    """Raise if a parent of the new node is one of its children, or runs after one."""
    behind = defaultdict(list)
    pairs = GroupParent.objects.using(using).filter(group_id=group_id)
    for child, parent in pairs.values_list("child_id", "parent_id"):
        behind[parent].append(child)
    found, todo = set[int](), [*children]
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            todo += behind[one]
    if wrong := sorted(found & {*parents}):
        name = GroupMember.objects.using(using).filter(pk=wrong[0]).values_list("name", flat=True).first()
        raise InvalidValue(
            f"the new node cannot run after {name!r}, which waits for the node that adds it, and so for the new one, "
            f"too: they would wait for each other. Nothing was written; leave {name!r} out of after."
        )


def _free_name(base: str, group_id: int, using: str) -> str:
    rows = GroupMember.objects.using(using).filter(group_id=group_id, name__startswith=base)
    taken = {*rows.values_list("name", flat=True)}
    number, found = 1, base
    while found in taken:
        number += 1
        found = f"{base}-{number}"
    return found
