"""Adds members and nodes: their jobs and their rows in one transaction, in which the row of the group is locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.marks import MEMBER, PARENT, group_of, marked, with_option, without_option
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.models.group import PARENTS_GATE, WAITS_FOR_PARENTS
from jobqueue.producer.dedupe import holders
from jobqueue.producer.enqueueing import add_many
from jobqueue.producer.insert import NewJob


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node of a workflow to add. `parents`: the places of its parents in the list that is added, all before it."""

    name: str
    job: NewJob
    parents: Sequence[int]


def add_members(group_id: int, jobs: Sequence[NewJob], *, using: str) -> list[int]:
    """Add jobs to a group that has not ended; their ids, in order. All or none, in one transaction or the caller's.

    Raises InvalidValue for a group that has ended, was canceled or does not exist, and for jobs whose dedupe keys are
    held, and what enqueue_many() raises. Nothing was written then.
    """
    if not jobs:
        return []
    work = partial(_add, group_id, [marked(job, MEMBER, group_id) for job in jobs], None, using)
    return retry_transient("enqueue", work, using=using, repeatable=False)


def add_nodes(group_id: int, nodes: Sequence[NewNode], *, using: str) -> list[int]:
    """Add the nodes of a workflow, as add_members(): those with parents wait for them."""
    wanted = {place for node in nodes for place in node.parents}
    jobs = [_node_job(node, place in wanted, group_id) for place, node in enumerate(nodes)]
    ids = _add(group_id, jobs, [node.name for node in nodes], using)
    pairs = [
        GroupParent(group_id=group_id, child_id=child, parent_id=ids[place])
        for child, node in zip(ids, nodes, strict=True)
        for place in node.parents
    ]
    GroupParent.objects.using(using).bulk_create(pairs, batch_size=vendor(using).insert_rows_max)
    return ids


def _node_job(node: NewNode, is_parent: bool, group_id: int) -> NewJob:
    job = marked(node.job, MEMBER, group_id)
    if is_parent:
        job = with_option(job, PARENT, True)
    if not node.parents:
        return job
    # The time within which it may be retried begins when its parents have ended, which is its run_at then.
    return replace(without_option(job, "first_due"), waits=(PARENTS_GATE, WAITS_FOR_PARENTS))


def _add(group_id: int, jobs: Sequence[NewJob], names: Sequence[str] | None, using: str) -> list[int]:
    with vendor(using).transaction(connections[using]):
        group = JobGroup.objects.using(using).filter(pk=group_id).select_for_update().first()
        if group is None:
            raise InvalidValue(f"there is no group {group_id}. Nothing was written.")
        if group.state == JobGroup.State.ENDED or group.canceled_at is not None:
            how = "was canceled" if group.canceled_at is not None else "has ended"
            raise InvalidValue(
                f"the group {group.name!r} ({group_id}) {how}, and takes no more jobs. Nothing was written; "
                "make another group."
            )
        refuse_held_keys(jobs, using)
        ids = add_many(jobs, using=using)
        if any(job.dedupe_key is not None for job in jobs):
            _refuse_others(group_id, ids, using)
        named: Sequence[str | None] = names or [None] * len(ids)
        rows = [
            GroupMember(job_id=job_id, group_id=group_id, name=name) for job_id, name in zip(ids, named, strict=True)
        ]
        GroupMember.objects.using(using).bulk_create(rows, batch_size=vendor(using).insert_rows_max)
        return ids


def refuse_held_keys(jobs: Sequence[NewJob], using: str) -> None:
    """Raise InvalidValue if a dedupe key of these jobs is held, or comes twice."""
    keys: dict[str, list[bytes]] = {}
    for job in jobs:
        if job.dedupe_key is not None:
            keys.setdefault(job.queue, []).append(job.dedupe_key)
    for queue, given in keys.items():
        if len({*given}) < len(given) or holders(queue, given, using=using):
            raise _held(queue)


def _refuse_others(group_id: int, ids: Sequence[int], using: str) -> None:
    """Raise if one of these jobs is not of the group: another enqueue has taken its key since it was looked for."""
    for queue, options in Job.objects.using(using).filter(pk__in=ids).values_list("queue", "options"):
        if group_of(options) != group_id:
            raise _held(queue)


def _held(queue: str) -> InvalidValue:
    return InvalidValue(
        f"a dedupe key among the members is held by a job of the queue {queue!r}, or comes twice, so the group would "
        "lack a member. Nothing was written; leave the key out, or the member."
    )
