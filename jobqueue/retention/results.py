"""DONE jobs whose result_ttl_seconds has passed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

from django.db.models.functions import Coalesce

from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job, ResultExpiry
from jobqueue.retention.chosen import Chosen
from jobqueue.retention.windows import held_until

#: expiries that are read at once
SIZE = 1000
_Row = tuple[datetime, int, float]


def expired(dedupe_seconds: float | None, *, using: str, writes: bool) -> Iterator[Chosen | None]:
    """Those whose time had come when this was called, the earliest first; None now and then.

    With `writes`, the expiries of jobs that are not DONE any more are deleted, and those of jobs that are needed for
    longer, as for their dedupe key, are moved.
    """
    now = retry_transient("housekeeping", partial(read_now, using), using=using)
    last: _Row | None = None
    while True:
        rows: list[_Row] = retry_transient("housekeeping", partial(_read, last, now, using), using=using)
        if not rows:
            return
        found = retry_transient("housekeeping", partial(_sort, rows, now, dedupe_seconds, using), using=using)
        by_queue, later = found
        if writes:
            kept = {job_id for ended in by_queue.values() for job_id in ended}
            gone = [job_id for _, job_id, _ in rows if job_id not in kept and job_id not in later]
            retry_transient("housekeeping", partial(_write, gone, later, using), using=using)
        yield None
        yield from (Chosen(queue, Job.Status.DONE, ended) for queue, ended in by_queue.items())
        last = rows[-1]


def _read(last: _Row | None, until: datetime, using: str) -> list[_Row]:
    """The next expiries up to an instant, in the order of the index."""
    due = ResultExpiry.objects.using(using).filter(expires_at__lte=until).order_by("expires_at", "pk")
    due = vendor(using).force_index(due, "ix_result_expiry")
    columns = ("expires_at", "pk", "ttl_seconds")
    if last is None:
        return list(due.values_list(*columns)[:SIZE])
    # Acks that were written together have the same instant.
    tied = ResultExpiry.objects.using(using).filter(expires_at=last[0], pk__gt=last[1]).order_by("pk")
    rows = list(tied.values_list(*columns)[:SIZE])
    if len(rows) < SIZE:
        rows += due.filter(expires_at__gt=last[0]).values_list(*columns)[: SIZE - len(rows)]
    return rows


def _sort(
    rows: list[_Row], now: datetime, dedupe_seconds: float | None, using: str
) -> tuple[dict[str, dict[int, datetime]], dict[int, datetime]]:
    """When those ended that may be deleted, by queue; and until when others stay."""
    ttls = {job_id: ttl for _, job_id, ttl in rows}
    jobs = Job.objects.using(using).filter(pk__in=[*ttls], status=Job.Status.DONE)
    columns = ("pk", "queue", Coalesce("finished_at", "updated_at"), "dedupe_key")
    windows = ("unique_mode", "unique_seconds", "created_at")
    by_queue: dict[str, dict[int, datetime]] = defaultdict(dict)
    later: dict[int, datetime] = {}
    for job_id, queue, ended_at, key, mode, seconds, created_at in jobs.values_list(*columns, *windows):
        held = held_until(mode, seconds, created_at, ended_at, dedupe_seconds) if key is not None else None
        # A job that was run again has ended later.
        until = ended_at + timedelta(seconds=ttls[job_id])
        until = until if held is None else max(until, held)
        if until <= now:
            by_queue[queue][job_id] = ended_at
        else:
            later[job_id] = until
    return by_queue, later


def _write(gone: list[int], later: dict[int, datetime], using: str) -> None:
    rows = ResultExpiry.objects.using(using)
    if gone:
        vendor(using).delete_by_key(rows, gone)
    for job_id, until in later.items():
        rows.filter(pk=job_id).update(expires_at=until)
