"""Who holds a dedupe key: a live job, and a finished one for DEDUPE_SECONDS after its end."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections
from django.db.models import Q

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.parameters import placeholder
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import in_state

LIVE = (Job.Status.READY, Job.Status.PROCESSING)


class Holders(dict[bytes, int]):
    """Job ids by key, and in `stale` the keys whose hold has run out."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: set[bytes] = set()


def holder(queue: str, key: bytes, *, using: str, after_conflict: bool = False) -> int | None:
    """The id of the job that holds `key`, or None.

    After a unique conflict it reads past the caller's snapshot: in REPEATABLE READ the winner is not in it.
    A shared lock on the index entry does that without touching the job's row, so its holder can still settle it.
    """
    found = holders(queue, [key], using=using)
    if key in found:
        return found[key]
    if not after_conflict or key in found.stale:
        return None
    return _newest_id(queue, key, using)


def _newest_id(queue: str, key: bytes, using: str) -> int | None:
    """The id of the committed job with this key, whatever this transaction's snapshot shows."""
    connection, dialect = connections[using], vendor(using)
    table, digits = connection.ops.quote_name(Job._meta.db_table), dialect.binary_parameter(connection, key)
    where = f"queue = %s AND dedupe_key = {placeholder(digits)}"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table} WHERE {where} {dialect.shared_lock_sql}", [queue, digits])
        row = cursor.fetchone()
    return row[0] if row else None


def holders(queue: str, keys: Sequence[bytes], *, using: str) -> Holders:
    """Which of `keys` are held, and by which jobs. Locks nothing."""
    found = Holders()
    rows = Job.objects.using(using).filter(queue=queue, dedupe_key__in=list(keys)).annotate(lapsed=_lapsed())
    for job_id, key, lapsed in rows.values_list("pk", "dedupe_key", "lapsed"):
        if lapsed:
            found.stale.add(key)
        else:
            found[key] = job_id
    return found


def free(queue: str, key: bytes, *, using: str) -> None:
    """Take the key from a finished job whose hold has run out; keep it as released_key for retry."""
    rows: JobQuerySet = Job.objects.using(using).filter(queue=queue, dedupe_key=key).annotate(lapsed=_lapsed())
    for job_id, status in rows.filter(lapsed=True).values_list("pk", "status"):
        # Key and state again in the WHERE: another enqueue may have freed it, or a retry revived the job.
        row = in_state([job_id], status, using=using).filter(dedupe_key=key)
        row.update(released_key=key, dedupe_key=None, updated_at=UtcNow())


def _lapsed() -> Q:
    seconds = load().dedupe_seconds
    ended = ~Q(status__in=LIVE)
    if seconds is None:
        return ended & Q(pk__isnull=True)
    return ended & Q(finished_at__lt=UtcNowPlus(-seconds))
