"""Ended jobs that stay whatever their age, because something else needs them."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Max

from jobqueue.db.clock import UtcNow
from jobqueue.models import Job, LaneEntry, Redrive, ResultExpiry


def those_that_stay(job_ids: Collection[int], status: int, using: str, *, expiring: bool = False) -> set[int]:
    """Which of these jobs stay. With `expiring` also those whose result_ttl_seconds has passed: results.py finds them.

    A FAILED job for which the others of its ordering key wait: without it they would go on by themselves. FAILED jobs
    that a redrive under way may still bring back. DONE jobs whose result_ttl_seconds has not passed.
    """
    if not job_ids:
        return set()
    if status == Job.Status.DONE:
        own = ResultExpiry.objects.using(using).filter(pk__in=job_ids)
        return {*(own if expiring else own.filter(expires_at__gt=UtcNow())).values_list("pk", flat=True)}
    if status != Job.Status.FAILED:
        return set()
    blocking = LaneEntry.objects.using(using).filter(job_id__in=job_ids).values_list("job_id", flat=True)
    newest = Redrive.objects.using(using).filter(due_at__isnull=False).aggregate(newest=Max("until_id"))["newest"]
    return {*blocking} | {job_id for job_id in job_ids if newest is not None and job_id <= newest}
