"""Deletes groups that have ended long ago: members and pairs first, in transactions of a thousand."""

from __future__ import annotations

from functools import partial

from django.db import connections

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.maintenance.cleaner import BATCHES_MAX, Deleted
from jobqueue.models import GroupMember, GroupParent, JobGroup

_GROUPS = 100


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Deleted:
    """Delete up to BATCHES_MAX batches of `limit` members, oldest groups first; the count is that of groups."""
    seconds = settings.group_retention_seconds
    if seconds is None:
        return Deleted(0)
    old = JobGroup.objects.using(using).filter(ended_at__lt=UtcNowPlus(-seconds)).order_by("ended_at")
    read: partial[list[int]] = partial(list, old.values_list("pk", flat=True)[:_GROUPS])
    deleted, batches = 0, 0
    for group_id in retry_transient("housekeeping", read, using=using):
        for some in (_members, _pairs):
            while gone := retry_transient("housekeeping", partial(some, group_id, limit, using), using=using):
                batches += 1
                if batches >= BATCHES_MAX:
                    return Deleted(deleted)
                if gone < limit:
                    break
        row = JobGroup.objects.using(using).filter(pk=group_id)
        deleted += retry_transient("housekeeping", row.delete, using=using)[0]
    return Deleted(deleted)


def _members(group_id: int, limit: int, using: str) -> int:
    server = vendor(using)
    with server.transaction(connections[using]):
        rows = server.force_index(GroupMember.objects.using(using).filter(group_id=group_id), "ix_group_member")
        # By state too, as the index has them: no sort.
        ids = list(rows.order_by("group_id", "state", "job_id").values_list("pk", flat=True)[:limit])
        return server.delete_by_key(GroupMember.objects.using(using), ids) if ids else 0


def _pairs(group_id: int, limit: int, using: str) -> int:
    server = vendor(using)
    with server.transaction(connections[using]):
        rows = GroupParent.objects.using(using).filter(group_id=group_id).order_by("group_id", "pk")
        ids = list(server.force_index(rows, "ix_group_of_parent").values_list("pk", flat=True)[:limit])
        return server.delete_by_key(GroupParent.objects.using(using), ids) if ids else 0
