"""Nodes of workflows: each is decided once, when none of its parents is outstanding any more.

As in ends.py: a transaction that has ended a parent looks for another outstanding one that nobody has locked, and
keeps it locked until its commit; whoever ends that one comes later and looks itself. Only a transaction that finds none
locks the job of the node, and looks again. A parent that another transaction has locked then counts as outstanding:
that transaction has to wait for the job, and looks after this one's commit. Nodes of which a plain read shows none are
locked first: so who waits for one of them keeps no parent of another node, for which its holder may wait in turn.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from django.db import Error, transaction
from django.db.models import Case, F, Model, OuterRef, QuerySet, Subquery, Value, When

from jobqueue import wakeup
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.models.group import HELD_BY_PARENTS, PARENTS_GATE, WAITS_FOR_PARENTS
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.ordering import SCHEDULED

M = TypeVar("M", bound=Model)
State = GroupMember.State
IfFailed = JobGroup.IfFailed
_INDEX = "ix_group_child"
#: pairs of one UPDATE
_PORTION = 5000
#: waits for locks that a commit is just releasing; whoever else holds them that long costs the end a sweep
_PAUSES_MS = (1, 2, 4, 8, 16, 32, 64)
_COLUMNS = ("pk", "queue", "task", "ordering_key", "options", "status", "gate")


def note_ends(by_state: Mapping[int, Collection[int]], using: str, *, late: bool = False) -> list[int]:
    """Note that these nodes have ended so, in the open transaction that ends them; the ids of their children.

    `late`: some pairs may be newer than the snapshot of the transaction.
    """
    children: set[int] = set()
    for state, parents in sorted(by_state.items()):
        # They are written by their key, which locks no others.
        rows = GroupParent.objects.using(using).filter(parent_id__in=sorted(parents))
        rows = rows.order_by("pk").select_for_update() if late else rows
        pairs = list(rows.values_list("pk", "child_id"))
        for by_key in _by_key((pk for pk, _ in pairs), using):
            vendor(using).update_by_key(by_key.filter(state=State.OUTSTANDING), {"state": state})
        children |= {child for _, child in pairs}
    return sorted(children)


def _by_key(pairs: Iterable[int], using: str) -> Iterator[QuerySet[GroupParent]]:
    """The pairs, in portions: MySQL scans the table for more keys than it has memory for in its optimizer."""
    keys = sorted(pairs)
    for begin in range(0, len(keys), _PORTION):
        yield GroupParent.objects.using(using).filter(pk__in=keys[begin : begin + _PORTION])


def outstanding_parents(child_id: int | OuterRef, using: str) -> QuerySet[GroupParent]:
    """The parents of a node that have not ended, as rows of pairs; the newest first."""
    rows = GroupParent.objects.using(using).filter(child_id=child_id, state=State.OUTSTANDING).order_by("-pk")
    return vendor(using).force_index(rows, _INDEX)


def decide(group_id: int, nodes: Collection[int], using: str) -> list[Job]:
    """Open those of the nodes that wait and whose parents have all ended, in the open transaction.

    One whose parent failed stays held with if_failed="hold". With "cancel", and in a group that was canceled, it is
    returned with its row locked: the caller cancels it.
    """
    waiting = _lock_free(nodes, using) if nodes else []
    if not waiting:
        return []
    group = JobGroup.objects.using(using).filter(pk=group_id).values_list("if_failed", "canceled_at").first()
    if group is None:
        return []
    opened: list[Job] = []
    held: list[Job] = []
    canceled: list[Job] = []
    states = _states_of_parents([job.pk for job in waiting], using)
    for job in waiting:
        if State.OUTSTANDING in states[job.pk]:
            continue
        well = states[job.pk] <= {State.DONE} or group[0] == IfFailed.CONTINUE
        if group[1] is not None or (not well and group[0] != IfFailed.HOLD):
            canceled.append(job)
        else:
            (opened if well else held).append(job)
    _open(opened, using)
    _waiting(held, using).update(wait_reason=HELD_BY_PARENTS, updated_at=UtcNow())
    return canceled


def behind_canceled(group_id: int, nodes: Collection[int], most: int, using: str) -> list[Job]:
    """Up to `most` of the nodes, and of those behind them, that are canceled too, whatever their generation.

    `nodes` are children of canceled ones in a workflow that cancels them. Their rows are locked. None if a row of
    theirs is locked by another transaction: decide() goes on.
    """
    children, parents = defaultdict(list), defaultdict(list)
    pairs = GroupParent.objects.using(using).filter(group_id=group_id)
    for child, parent, state in pairs.values_list("child_id", "parent_id", "state"):
        children[parent].append(child)
        parents[child].append((parent, state))
    # In the order of their generations: a node follows its parents.
    found: dict[int, None] = {}
    todo = deque(sorted(nodes))
    while todo and len(found) < most:
        node = todo.popleft()
        if node not in found and _all_ended(parents[node], found):
            found[node] = None
            todo += children[node]
    jobs = {job.pk: job for job in _lock([*found], using) if job.status == Job.Status.READY}
    jobs = {pk: job for pk, job in jobs.items() if job.gate == PARENTS_GATE}
    rows = GroupParent.objects.using(using).filter(child_id__in=sorted(jobs)).order_by("child_id", "state", "pk")
    now = defaultdict(list)
    for row in newest(vendor(using).force_index(rows, _INDEX), using) or ():
        now[row.child_id].append((row.parent_id, row.state))
    sure: dict[int, Job] = {}
    for node in found:
        if node in now and _all_ended(now[node], sure):
            sure[node] = jobs[node]
    return [*sure.values()]


def _all_ended(parents: Iterable[tuple[int, int]], canceled: Collection[int]) -> bool:
    return all(state != State.OUTSTANDING or parent in canceled for parent, state in parents)


def newest(rows: QuerySet[M], using: str, in_doubt: QuerySet[Any] | None = None) -> list[M] | None:
    """The rows, locked: a snapshot may be older than the ends. None if another transaction has locked one.

    InnoDB releases the locks of a commit one after the other, the latest first: who has waited for the row of the group
    or of the node may still meet those of members whose ends are committed. `in_doubt` are the rows that a plain read
    shows while they are not; if it shows none, the rows are read again until the locks are gone.
    """
    locks = vendor(using).locks
    for pause_ms in _PAUSES_MS:
        try:
            with transaction.atomic(using=using):
                return list(locks.lock_own(rows, skip_locked=False, nowait=True))
        except Error as error:
            if not locks.is_lock_timeout(error):
                raise
        if in_doubt is None or in_doubt.values_list("pk")[:1]:
            break
        time.sleep(pause_ms / 1000)
    return None


def _lock_free(nodes: Collection[int], using: str) -> list[Job]:
    """The nodes that wait, and of which no parent is outstanding that nobody has locked; their rows are locked."""
    # One statement for all; an old snapshot only sends more of them to the second look, or to that for their states.
    one = outstanding_parents(OuterRef("pk"), using).values("pk")[:1]
    rows = Job.objects.using(using).filter(pk__in=sorted(nodes)).annotate(parent=Subquery(one))
    free = [job_id for job_id, parent in rows.values_list("pk", "parent") if parent is None]
    found = _lock(free, using)
    for node in sorted({*nodes} - {*free}):
        if not vendor(using).lock_rows(outstanding_parents(node, using), 1):
            found += _lock([node], using)
    return [job for job in found if job.status == Job.Status.READY and job.gate == PARENTS_GATE]


def _lock(nodes: Sequence[int], using: str) -> list[Job]:
    rows = Job.objects.using(using).filter(pk__in=nodes).order_by("pk").only(*_COLUMNS)
    return list(rows.select_for_update()) if nodes else []


def _states_of_parents(nodes: Sequence[int], using: str) -> dict[int, set[int]]:
    """Map each node to the states of its parents; one that is locked elsewhere is OUTSTANDING, or may be."""
    rows = GroupParent.objects.using(using).filter(child_id__in=nodes).order_by("child_id", "state", "pk")
    found: dict[int, set[int]] = {node: set() for node in nodes}
    in_doubt = outstanding_parents(nodes[0], using) if len(nodes) == 1 else None
    locked = newest(vendor(using).force_index(rows, _INDEX), using, in_doubt)
    if locked is None:
        if len(nodes) == 1:
            return {nodes[0]: {State.OUTSTANDING}}
        # Only those that are locked.
        for node in nodes:
            found |= _states_of_parents([node], using)
    for row in locked or ():
        found[row.child_id].add(row.state)
    return found


def _open(jobs: Sequence[Job], using: str) -> None:
    later = When(run_at__gt=UtcNow(), then=Value(SCHEDULED))
    _waiting(jobs, using).update(
        gate=0,
        wait_reason=Case(later, output_field=Job._meta.get_field("wait_reason")),
        # It falls due now: how long it has waited for its parents says nothing about the workers.
        run_at=Case(When(run_at__gt=UtcNow(), then=F("run_at")), default=UtcNow()),
        updated_at=UtcNow(),
    )
    for queue in {job.queue for job in jobs}:
        wakeup.notify(queue, using)


def _waiting(jobs: Sequence[Job], using: str) -> JobQuerySet:
    return in_state([job.pk for job in jobs], Job.Status.READY, using=using).filter(gate=PARENTS_GATE)


def parents_again(job_ids: Collection[int], using: str) -> None:
    """Nodes that are to run again, in the open transaction: their children wait for them again."""
    pairs = list(GroupParent.objects.using(using).filter(parent_id__in=sorted(job_ids)).values_list("pk", "child_id"))
    if not pairs:
        return
    for by_key in _by_key((pk for pk, _ in pairs), using):
        vendor(using).update_by_key(by_key, {"state": State.OUTSTANDING})
    children = in_state(sorted({child for _, child in pairs}), Job.Status.READY, using=using)
    children.filter(gate=PARENTS_GATE).update(wait_reason=WAITS_FOR_PARENTS)


def close_gates(jobs: Collection[Job], using: str) -> None:
    """Let nodes that have ended wait for their parents, in the open transaction that makes them READY again."""
    ids = sorted(job.pk for job in jobs if job.gate != PARENTS_GATE)
    if ids:
        Job.objects.using(using).filter(pk__in=ids).update(gate=PARENTS_GATE)
    for job in jobs:
        job.gate = PARENTS_GATE


def undecided(nodes: Collection[int], using: str) -> list[int]:
    """Those of the nodes that wait although no parent is outstanding; a reader that locks nothing may err."""
    rows = in_state(sorted(nodes), Job.Status.READY, using=using).filter(gate=PARENTS_GATE)
    waiting = {*rows.exclude(wait_reason=HELD_BY_PARENTS).values_list("pk", flat=True)}
    if not waiting:
        return []
    pairs = GroupParent.objects.using(using).filter(child_id__in=sorted(waiting), state=State.OUTSTANDING)
    return sorted(waiting - {*pairs.values_list("child_id", flat=True)})
