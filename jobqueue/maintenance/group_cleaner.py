"""Deletes groups that have ended long ago: members and pairs first, in transactions of a thousand."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.grouping.reading import still_read
from jobqueue.maintenance.cleaner import BATCHES_MAX, Deleted
from jobqueue.models import GroupMember, GroupParent, JobGroup

_GROUPS = 100


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Deleted:
    """Delete up to BATCHES_MAX batches of `limit` members, oldest groups first; the count is that of groups."""
    seconds = settings.group_retention_seconds
    if seconds is None:
        return Deleted(0)
    old = JobGroup.objects.using(using).filter(ended_at__lt=UtcNowPlus(-seconds)).order_by("ended_at", "pk")
    deleted, stay, batches = 0, 0, 0
    while True:
        # Those that stay are passed over: they must not keep the others.
        read: partial[list[int]] = partial(list, old.values_list("pk", flat=True)[stay : stay + _GROUPS])
        groups = retry_transient("housekeeping", read, using=using)
        for group_id in groups:
            gone: int | None = 0
            while gone == 0:
                if batches >= BATCHES_MAX:
                    return Deleted(deleted)
                work = partial(_delete_some, old.filter(pk=group_id), group_id, limit, using)
                gone = retry_transient("housekeeping", work, using=using)
                batches += gone is not None
            deleted, stay = deleted + (gone or 0), stay + (gone is None)
        if len(groups) < _GROUPS:
            return Deleted(deleted)


def _delete_some(old: QuerySet[JobGroup], group_id: int, limit: int, using: str) -> int | None:
    """Delete the next `limit` members and pairs of a group, and the group with the last ones; how many groups are gone.

    None for one that stays: its callbacks have not ended, or it was resumed. Its row is locked, so that resume() comes
    before the first members are gone, or sees that they are.
    """
    server = vendor(using)
    with server.transaction(connections[using]):
        if not list(server.lock_rows(old)) or still_read([group_id], using):
            return None
        members = server.force_index(GroupMember.objects.using(using).filter(group_id=group_id), "ix_group_member")
        pairs = GroupParent.objects.using(using).filter(group_id=group_id).order_by("group_id", "pk")
        # By state too, as the index has them: no sort.
        room = limit - _delete(members.order_by("group_id", "state", "job_id"), limit, using)
        room -= _delete(server.force_index(pairs, "ix_group_of_parent"), room, using) if room else 0
        if not room:
            return 0
        return JobGroup.objects.using(using).filter(pk=group_id).delete()[0]


def _delete(rows: QuerySet[Any], limit: int, using: str) -> int:
    ids = list(rows.values_list("pk", flat=True)[:limit])
    return vendor(using).delete_by_key(rows.model.objects.using(using), ids) if ids else 0
