"""Adds members: their jobs and their rows in one transaction, in which the row of the group is locked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.marks import MEMBER, group_of, marked
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.producer.dedupe import holders
from jobqueue.producer.enqueueing import add_many
from jobqueue.producer.insert import NewJob


def add_members(group_id: int, jobs: Sequence[NewJob], *, using: str) -> list[int]:
    """Add jobs to a group that has not ended; their ids, in order. All or none, in one transaction or the caller's.

    Raises InvalidValue for a group that has ended, was canceled or does not exist, and for jobs whose dedupe keys are
    held, and what enqueue_many() raises. Nothing was written then.
    """
    if not jobs:
        return []
    work = partial(_add, group_id, [marked(job, MEMBER, group_id) for job in jobs], using)
    return retry_transient("enqueue", work, using=using, repeatable=False)


def _add(group_id: int, jobs: Sequence[NewJob], using: str) -> list[int]:
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
        _refuse_held_keys(jobs, using)
        ids = add_many(jobs, using=using)
        if any(job.dedupe_key is not None for job in jobs):
            _refuse_others(group_id, ids, using)
        rows = [GroupMember(job_id=job_id, group_id=group_id) for job_id in ids]
        GroupMember.objects.using(using).bulk_create(rows, batch_size=vendor(using).insert_rows_max)
        return ids


def _refuse_held_keys(jobs: Sequence[NewJob], using: str) -> None:
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
