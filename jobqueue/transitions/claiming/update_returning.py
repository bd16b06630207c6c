"""READY -> PROCESSING by UPDATE ... RETURNING, which locks, writes and returns rows: one round trip instead of four."""

from __future__ import annotations

import logging
import uuid
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any

from django.db import Error, connections, transaction
from django.db.models import Expression, F, FloatField, Q, Value
from django.db.models.functions import Coalesce, Greatest, Least

from jobqueue.base.validation import SECONDS_MAX
from jobqueue.db import retry, vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import AnyOfArray, Slot
from jobqueue.db.prepared import Prepared, prepare_change_returning
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.grouping.members import group_of
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.plans import (
    OneStatement,
    Row,
    Taken,
    end_expired,
    expired,
    free_keys,
    lease_columns,
    row_columns,
    with_waiting_keys,
)
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import end_in_groups

logger = logging.getLogger("jobqueue.transitions")

#: the columns to return after the write: those of a Row, and the end of the lease
_ELSE: dict[str, str | Expression] = {
    "due_at": Selected("run_at"),
    "made_at": Selected("created_at"),
    "valid_until": Selected("expires_at"),
    "now": Selected("locked_at"),
}
# RETURNING promises no order.
_ORDER = itemgetter(Row._fields.index("due_at"), Row._fields.index("pk"))


def update_returning(plan: OneStatement) -> Taken:
    """One pass: lease level by level; each statement commits what it took.

    So an error after the first one ends the pass with what it has: those jobs are leased and must run.
    """
    found: list[tuple[Row, Lease]] = []
    token = uuid.uuid4().bytes
    given = {"queue": plan.queue, "worker": plan.worker, "token": token, "seconds": plan.seconds}
    # None: the highest priority that waits, without a seek for it; nothing if all of its jobs are delayed.
    tops: list[int | None] = [None] if plan.unseen_top else []
    level = None
    try:
        for level in chain(tops, plan.levels()):
            for start in plan.begin.cursor.starts(level):
                if len(found) < plan.limit:
                    wanted, columns = plan.limit - len(found), row_columns()
                    prepared = _statement(
                        plan.using, wanted, level is None, columns, plan.passed_over, **start.condition()
                    )
                    with vendor(plan.using).in_index_order(connections[plan.using]):
                        rows = prepared.rows(level=level, **given, **start.values())
                    found += _leased(rows, plan, token)
            if len(found) >= plan.limit or (found and level in (None, plan.begin.only_level)):
                break
    except Error as error:
        if not found:
            raise
        logger.warning("a claim of %r ended early, with %d jobs: %s", plan.queue, len(found), error)
        retry.count_error("claim", error, using=plan.using)
    _free_keys([lease for _, lease in found])
    return _without_late(found, from_top=bool(found) and level is None)


def _free_keys(leases: list[Lease]) -> None:
    """Free the keys that were for the wait. If that fails, the next enqueue of the key takes it."""
    if not (keyed := with_waiting_keys(leases)):
        return
    try:
        retry_transient("claim", partial(free_keys, keyed), using=keyed[0].using)
    except (Error, DatabaseBusy) as error:
        logger.warning("the dedupe keys of %d claimed jobs could not be freed yet: %s", len(keyed), error)


def _leased(rows: list[tuple[Any, ...]], plan: OneStatement, token: bytes) -> list[tuple[Row, Lease]]:
    rows.sort(key=_ORDER)
    return [(row := Row(*columns), plan.lease(row, token, until)) for *columns, until in rows]


def _without_late(found: list[tuple[Row, Lease]], *, from_top: bool) -> Taken:
    """End those that have expired, by one statement. If that fails, their leases run out and are reaped."""
    rows = [row for row, _ in found]
    _, late = expired(rows)
    if not late:
        return Taken(rows, [lease for _, lease in found], [], from_top=from_top)
    gone, any_lease = {row.pk for row in late}, found[0][1]
    mine = in_state(gone, Job.Status.PROCESSING, using=any_lease.using).filter(lock_token=any_lease.token)
    try:
        retry_transient("claim", partial(_end_late, mine, late, any_lease.using), using=any_lease.using)
    except (Error, DatabaseBusy) as error:
        logger.warning("%d expired jobs could not be ended: %s; their leases will run out", len(late), error)
        late = []
    return Taken(rows, [lease for row, lease in found if row.pk not in gone], late, from_top=from_top)


def _end_late(mine: JobQuerySet, late: list[Row], using: str) -> None:
    if not any(group_of(row.options) for row in late):
        end_expired(mine)
        return
    with vendor(using).transaction(connections[using]):
        end_expired(mine)
        end_in_groups(((row.pk, row.options, Job.Status.CANCELED) for row in late), using)


@lru_cache(maxsize=256)
def _statement(
    using: str, limit: int, top: bool, columns: tuple[str, ...], excluded: tuple[str, ...], **above: Slot
) -> Prepared:
    level = partial(candidates.due, priority=candidates.LEVEL)
    due = (candidates.top_due if top else level)(candidates.QUEUE, using=using).filter(**above)
    if excluded:
        due = due.filter(Q(task=None) | ~Q(task__in=excluded))
    seconds = Slot("seconds", FloatField())
    granted = Least(Greatest(Coalesce(F("lease_seconds"), seconds), seconds), Value(float(SECONDS_MAX)))
    changes = lease_columns(UtcNow(), UtcNowPlus(granted))
    found = [*(_ELSE.get(name, name) for name in columns), Selected("lock_until")]
    with transaction.atomic(using=using):
        locked = vendor(using).lock_rows(due.values("pk"), limit)
        return prepare_change_returning(Job.objects.using(using).filter(AnyOfArray(F("pk"), locked)), changes, found)
