"""Ended jobs that stay whatever their age, because something else needs them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from django.db.models import BigIntegerField, F, Max

from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import AnyOf, Keys
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.grouping.reading import still_read
from jobqueue.models import GroupMember, Job, LaneEntry, Redrive, ResultExpiry


def those_that_stay(job_ids: Collection[int], status: int, using: str, *, expiring: bool = False) -> set[int]:
    """Which of these jobs stay. With `expiring` also those whose result_ttl_seconds has passed: results.py finds them.

    A FAILED job for which the others of its ordering key wait: without it they would go on by themselves. FAILED jobs
    that a redrive under way may still bring back. DONE jobs whose result_ttl_seconds has not passed. Members of groups
    that have not ended, or whose callbacks have not: the results are for those.
    """
    if not job_ids:
        return set()
    return _members(job_ids, using) | _others(job_ids, status, using, expiring)


def _members(job_ids: Collection[int], using: str) -> set[int]:
    found = dict(_group_ids(using).rows(ids=job_ids))
    if not found:
        return set()
    groups = still_read({*found.values()}, using)
    return {job_id for job_id, group_id in found.items() if group_id in groups}


def _others(job_ids: Collection[int], status: int, using: str, expiring: bool) -> set[int]:
    if status == Job.Status.DONE:
        return {job_id for (job_id,) in _with_result(using, expiring).rows(ids=job_ids)}
    if status != Job.Status.FAILED:
        return set()
    blocking = LaneEntry.objects.using(using).filter(job_id__in=job_ids).values_list("job_id", flat=True)
    newest = Redrive.objects.using(using).filter(due_at__isnull=False).aggregate(newest=Max("until_id"))["newest"]
    return {*blocking} | {job_id for job_id in job_ids if newest is not None and job_id <= newest}


@cache
def _group_ids(using: str) -> Prepared:
    rows = GroupMember.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    return prepare_rows(rows.values_list("job_id", "group_id"))


@cache
def _with_result(using: str, expiring: bool) -> Prepared:
    """Jobs that have an expiry; unless `expiring`, those whose has not passed."""
    rows = ResultExpiry.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    return prepare_rows((rows if expiring else rows.filter(expires_at__gt=UtcNow())).values_list("pk"))
