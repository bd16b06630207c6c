"""Deletes ended jobs with their attempts, in short transactions that wait for nobody; and which of them stay.

Also the attempts of jobs that plain SQL has deleted, and single jobs whatever their age.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import NamedTuple

from django.db import DataError, Error, IntegrityError, connections, transaction
from django.db.models import DO_NOTHING, BigIntegerField, Exists, F, Max, OuterRef, ProtectedError, RestrictedError
from django.db.models.functions import Coalesce

from jobqueue.conf import load
from jobqueue.db import fault_vendor, vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import UtcNow
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.expressions import AnyOf, Keys
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.grouping.members import still_read
from jobqueue.models import GroupMember, Job, JobAttempt, JobTag, LaneEntry, Redrive, ResultExpiry
from jobqueue.retention.history import Keep, keep_by

logger = logging.getLogger("jobqueue.worker")
#: raised where a row of the project refers to a job, and is not to lose it
REFUSALS = (IntegrityError, ProtectedError, RestrictedError)
#: of each wait for a lock: that of a row of the project, for job rows that others have locked are left out
LOCK_SECONDS = 1.0
#: for how long a job is not tried again: one that another row protects, and one that a lock protects
_REFUSED_SECONDS, _LOCKED_SECONDS, _REFUSED_MAX = 3600.0, 60.0, 10_000
#: attempts that one call reads
SLICE = 5000
_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


class Chosen(NamedTuple):
    """Jobs of one queue and state that may be deleted, and when each has ended."""

    queue: str
    status: int
    ended: Mapping[int, datetime]

    @property
    def state(self) -> str:
        """Their state, as the setting names it."""
        return Job.Status(self.status).name.lower()


def those_that_stay(job_ids: Collection[int], status: int, using: str, *, expiring: bool = False) -> set[int]:
    """Which of these jobs stay. With `expiring` also those past their TTL: results_past_ttl() finds them.

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


def delete_jobs(ended: Mapping[int, datetime], status: int, *, using: str, keep: Keep | None = None) -> list[int]:
    """Delete those jobs that still are in this state since these instants; the ids of those that are gone.

    One transaction. Jobs that another transaction has locked are left out, and those that are to stay. `keep` may
    store copies; if it raises, nothing is deleted. Raises REFUSALS, and DatabaseBusy if a row that goes with them is
    locked for LOCK_SECONDS.
    """
    if not ended:
        return []
    return retry_transient("housekeeping", partial(_delete, ended, status, using, keep), using=using)


def _delete(ended: Mapping[int, datetime], status: int, using: str, keep: Keep | None) -> list[int]:
    server, connection = vendor(using), connections[using]
    try:
        with server.transaction(connection), server.locks.brief_transaction(connection, LOCK_SECONDS):
            locked = _lock(using).rows(ids=[*ended])
            # A job that was retried meanwhile has ended later, if it has ended.
            ids = [job_id for job_id, now, ended_at in locked if (now, ended_at) == (status, ended[job_id])]
            staying = those_that_stay(ids, status, using)
            ids = [job_id for job_id in ids if job_id not in staying]
            if ids:
                finish = keep(ids, using) if keep is not None else None
                _delete_beside(ids, status, using)
                _delete_rows(ids, using)
                if finish is not None:
                    finish()
    except Error as error:
        if in_callers_transaction(connection) or fault_vendor(using).error_kind(error) is not ErrorKind.LOCK_TIMEOUT:
            raise
        raise DatabaseBusy(f"{error}. Nothing was deleted; it is tried again later.") from error
    return ids


def _delete_beside(job_ids: Sequence[int], status: int, using: str) -> None:
    """Delete the attempts of jobs, their tags and their expiries."""
    server = vendor(using)
    for model, index in ((JobTag, "ix_tag_job"), (JobAttempt, "ix_attempt_job")):
        if ids := _ids(_of_jobs(model, index, using), job_ids):
            server.delete_by_key(model._base_manager.using(using), ids)
    if status == Job.Status.DONE and (ids := _ids(_expiries(using), job_ids)):
        server.delete_by_key(ResultExpiry.objects.using(using), ids)


def _ids(rows: Prepared, job_ids: Sequence[int]) -> list[int]:
    return [row_id for (row_id,) in rows.rows(ids=job_ids)]


# Prepared once: on SQLite all other writers wait while Django builds the statements within the transaction.
@cache
def _lock(using: str) -> Prepared:
    server = vendor(using)
    jobs = Job.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    rows = server.force_index(jobs, "PRIMARY").order_by("pk")
    with transaction.atomic(using=using):
        return prepare_rows(server.lock_rows(rows).values_list("pk", "status", Coalesce("finished_at", "updated_at")))


@cache
def _of_jobs(model: type[JobTag] | type[JobAttempt], index: str, using: str) -> Prepared:
    rows = model._base_manager.using(using).filter(AnyOf(F("job_id"), Keys("ids", BigIntegerField())))
    return prepare_rows(vendor(using).force_index(rows, index).values_list("pk"))


@cache
def _expiries(using: str) -> Prepared:
    rows = ResultExpiry.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    return prepare_rows(rows.values_list("pk"))


@cache
def _is_referred_to() -> bool:
    """Whether models of the project have foreign keys to jobs."""
    return any(
        field.auto_created and not field.concrete and getattr(field, "on_delete", DO_NOTHING) is not DO_NOTHING
        for field in Job._meta.get_fields(include_hidden=True)
    )


def _delete_rows(ids: Sequence[int], using: str) -> None:
    if _is_referred_to():
        # Models of the project refer to jobs: Django does what their on_delete says.
        Job.objects.using(using).filter(pk__in=ids).only("pk").delete()
    else:
        vendor(using).delete_by_key(Job.objects.using(using), ids)


def delete_job(job_id: int, *, using: str | None = None) -> bool:
    """Delete an ended job with its attempts, or move it to the archive where RETENTION says so. Whether it is gone.

    False for a job that has not ended or that another transaction has locked, for one that is to stay (those_that_stay)
    and if a protected row of the project refers to it. A dedupe key that it held is free afterwards.
    """
    alias = alias_of(using)
    ended = Job.objects.using(alias).filter(pk=job_id, status__in=_ENDED)
    columns = ended.values_list("queue", "status", Coalesce("finished_at", "updated_at"))
    found = retry_transient("housekeeping", partial(columns.first), using=alias)
    if found is None:
        return False
    queue, status, ended_at = found
    keep = keep_by(load())(queue, Job.Status(status).name.lower())
    try:
        return bool(delete_jobs({job_id: ended_at}, status, using=alias, keep=keep))
    except REFUSALS:
        return False


class Deletions:
    """Jobs that are to be deleted, in transactions of `size`.

    A transaction that is refused is tried again in halves, so that one job does not keep the others; a single one that
    is refused is left out for a while.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._todo: deque[Chosen] = deque()
        self._refused: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._todo)

    def add(self, found: Chosen) -> None:
        """Have these jobs deleted, unless they were refused lately."""
        now = time.monotonic()
        items = [item for item in found.ended.items() if self._refused.get(item[0], 0.0) <= now]
        for begin in range(0, len(items), self._size):
            self._todo.append(found._replace(ended=dict(items[begin : begin + self._size])))

    def next(self, keep_of: Callable[[str, str], Keep | None], using: str) -> tuple[Chosen, list[int]]:
        """Run the next transaction: what it was to delete, and the ids of those that are gone.

        `keep_of` returns what stores copies of the jobs of a queue and state. Raises errors that do not come from one
        job, as where the account may not delete.
        """
        found = self._todo.popleft()
        keep = keep_of(found.queue, found.state)
        try:
            return found, delete_jobs(found.ended, found.status, using=using, keep=keep)
        except (DatabaseBusy, DataError, *REFUSALS) as error:
            if in_callers_transaction(connections[using]):
                raise
            self._again(found, error)
        return found, []

    def _again(self, found: Chosen, error: Exception) -> None:
        items = [*found.ended.items()]
        if len(items) > 1:
            middle = len(items) // 2
            self._todo.extendleft(found._replace(ended=dict(half)) for half in (items[middle:], items[:middle]))
            return
        if len(self._refused) >= _REFUSED_MAX:
            self._refused.clear()
        ((job_id, _),) = items
        wait = _LOCKED_SECONDS if isinstance(error, DatabaseBusy) else _REFUSED_SECONDS
        self._refused[job_id] = time.monotonic() + wait
        logger.info("job %d of queue %s is not deleted, and tried again later: %s", job_id, found.queue, error)


def delete_attempts_without_job(after_id: int, *, using: str) -> tuple[int, int]:
    """Look at the next SLICE attempts behind an id. Returns how many were deleted, and where to go on; 0: at the first.

    Their ids are read before it is looked for their jobs: a job is always older than its attempts.
    """
    rows = JobAttempt.objects.using(using).filter(pk__gt=after_id).order_by("pk")
    ids: list[int] = retry_transient(
        "housekeeping", partial(list, rows.values_list("pk", flat=True)[:SLICE]), using=using
    )
    if not ids:
        return 0, 0
    seen = JobAttempt.objects.using(using).filter(pk__range=(ids[0], ids[-1]))
    lost = seen.filter(~Exists(Job.objects.filter(pk=OuterRef("job_id")))).values_list("pk", flat=True)
    found: list[int] = retry_transient("housekeeping", partial(list, lost), using=using)
    deleted = 0
    if found:
        delete = partial(vendor(using).delete_by_key, JobAttempt.objects.using(using), found)
        deleted = retry_transient("housekeeping", delete, using=using)
    return deleted, ids[-1] if len(ids) == SLICE else 0
