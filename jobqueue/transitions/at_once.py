"""READY -> PROCESSING by one statement, where an UPDATE can lock, write and return rows: one round trip, not four."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from functools import lru_cache, partial
from operator import itemgetter

from django.db import Error, transaction
from django.db.models import Expression, F, FloatField, Value
from django.db.models.functions import Coalesce, Greatest, Least

from jobqueue import candidates
from jobqueue.db import retry, vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.prepared import AnyOfArray, Prepared, Slot, prepare_change_returning
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job
from jobqueue.names import SECONDS_MAX
from jobqueue.transitions.expiring import end_expired, expired
from jobqueue.transitions.floors import NO_FLOOR, Floor
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.request import Request, Row, Taken, taken
from jobqueue.transitions.rows import in_state

logger = logging.getLogger("jobqueue.transitions")

#: what RETURNING gives after the write: a Row, and when the lease ends
_ELSE: dict[str, str | Expression] = {
    "due_at": Selected("run_at"),
    "made_at": Selected("created_at"),
    "valid_until": Selected("expires_at"),
    "now": Selected("locked_at"),
}
_COLUMNS = [*(_ELSE.get(name, name) for name in Row._fields), Selected("lock_until")]
# RETURNING promises no order.
_ORDER = itemgetter(Row._fields.index("due_at"), Row._fields.index("pk"))


def take_at_once(request: Request, levels: Iterator[int]) -> Taken:
    """Lease level by level; what each statement took is committed with it.

    So an error after the first one ends the claim with what it has: those jobs are leased and must be run.
    """
    found: list[tuple[Row, Lease]] = []
    token = uuid.uuid4().bytes
    try:
        for level in levels:
            for floor in [request.floor, NO_FLOOR] if level == request.floor.level else [NO_FLOOR]:
                if len(found) < request.limit:
                    found += _take(request, request.limit - len(found), level, floor, token)
            if len(found) >= request.limit:
                break
    except Error as error:
        if not found:
            raise
        logger.warning("a claim of %r ended early, with %d jobs: %s", request.queue, len(found), error)
        retry.met(error, using=request.using)
    return _without_late(found)


def take_from_top(request: Request) -> Taken:
    """Lease due jobs of the highest priority that waits, without a look before; none if all of those are delayed."""
    return _without_late(_take(request, request.limit, None, NO_FLOOR, uuid.uuid4().bytes))


def _without_late(found: list[tuple[Row, Lease]]) -> Taken:
    """End those that had expired, by one statement. If that fails, their leases end as those of a lost worker do."""
    rows = [row for row, _ in found]
    _, late = expired(rows)
    if not late:
        return Taken(rows, [lease for _, lease in found], [])
    gone, any_lease = {row.pk for row in late}, found[0][1]
    mine = in_state(gone, Job.Status.PROCESSING, using=any_lease.using).filter(lock_token=any_lease.token)
    try:
        retry_transient(partial(end_expired, mine), using=any_lease.using)
    except (Error, DatabaseBusy) as error:
        logger.warning("%d expired jobs could not be ended: %s; their leases will run out", len(late), error)
        late = []
    return Taken(rows, [lease for row, lease in found if row.pk not in gone], late)


def _take(request: Request, limit: int, level: int | None, floor: Floor, token: bytes) -> list[tuple[Row, Lease]]:
    condition = {} if floor is NO_FLOOR else floor.condition()
    values = {"queue": request.queue, "level": level, "worker": request.worker, "token": token, **floor.values()}
    prepared = _statement(request.using, limit, level is None, **condition)
    found = prepared.rows(**values, seconds=request.seconds)
    found.sort(key=_ORDER)
    return [(row := Row._make(columns), request.lease(row, token, until)) for *columns, until in found]


@lru_cache(maxsize=256)
def _statement(using: str, limit: int, top: bool, **above: Slot) -> Prepared:
    level = partial(candidates.due, priority=candidates.LEVEL)
    due = (candidates.top_due if top else level)(candidates.QUEUE, using=using).filter(**above)
    seconds = Slot("seconds", FloatField())
    granted = Least(Greatest(Coalesce(F("lease_seconds"), seconds), seconds), Value(float(SECONDS_MAX)))
    changes = taken(UtcNow(), UtcNowPlus(granted))
    with transaction.atomic(using=using):
        locked = vendor(using).lock_rows(due).values("pk")[:limit]
        return prepare_change_returning(Job.objects.using(using).filter(AnyOfArray(F("pk"), locked)), changes, _COLUMNS)
