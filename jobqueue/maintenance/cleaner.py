"""Deletes what is over, table by table, in short transactions: old rows, groups with their members, ended locks."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter as setting
from typing import Any, ClassVar

from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.grouping.members import still_read
from jobqueue.locks.lease import ended, sweep
from jobqueue.locks.mutex_rows import MUTEX_IDLE_SECONDS
from jobqueue.models import (
    ArchivedJob,
    AuditEvent,
    GroupMember,
    GroupParent,
    HeldKey,
    IdempotencyRecord,
    JobAlarm,
    JobGroup,
    JobStat,
    LockFinding,
    LockStat,
    MutexRow,
    OutboxEvent,
    Redrive,
    Schedule,
    ScheduleTick,
    ScheduleVersion,
    Worker,
)
from jobqueue.models.locks import MUTEX_FLOOR, add_to_floor, floor

#: age of rows that transactions only lock and never read: the next use of the key inserts a missing one again
KEY_SECONDS = 86_400.0
#: groups of one read
_GROUPS = 100


@dataclass(frozen=True, slots=True)
class Cleaner:
    """Deletes the rows of one table whose `column` is older than `age_seconds`, oldest first, by `index`."""

    name: str
    model: type[Any]
    column: str
    index: str
    age_seconds: Callable[[Settings], float | None]  # None: keep all rows

    def run_once(self, settings: Settings, *, using: str, limit: int = 1000, seconds: float = math.inf) -> Counter[str]:
        """Delete rows for about `seconds`, in transactions of `limit`; rows that others have locked stay."""
        age_seconds = self.age_seconds(settings)
        if age_seconds is None:
            return Counter()
        before = UtcNowPlus(-age_seconds) if age_seconds else UtcNow()
        rows = self.model.objects.using(using).filter(**{f"{self.column}__lt": before}).order_by(self.column)
        deleted, end = 0, time.monotonic() + seconds
        while True:
            gone = retry_transient("housekeeping", lambda: self._delete_some(rows, limit), using=using)
            deleted += gone
            if gone < limit or time.monotonic() >= end:
                return Counter({f"{self.name}_deleted": deleted})

    def _delete_some(self, rows: QuerySet[Any], limit: int) -> int:
        if not rows.exists():
            # The usual case: no transaction.
            return 0
        server = vendor(rows.db)
        with server.transaction(connections[rows.db]):
            keys = list(server.lock_rows(server.force_index(rows, self.index).values_list("pk", flat=True), limit))
            return self.model.objects.using(rows.db).filter(pk__in=keys).delete()[0] if keys else 0


@dataclass(frozen=True, slots=True)
class GroupCleaner:
    """Deletes groups that have ended long ago, oldest first: members and pairs before the group."""

    name: ClassVar = "groups"
    model: ClassVar = JobGroup

    def run_once(self, settings: Settings, *, using: str, limit: int = 1000, seconds: float = math.inf) -> Counter[str]:
        """Delete groups for about `seconds`, in transactions of `limit` members and pairs."""
        age_seconds = settings.group_retention_seconds
        done, stay, end = Counter[str](), 0, time.monotonic() + seconds
        if age_seconds is None:
            return done
        old = JobGroup.objects.using(using).filter(ended_at__lt=UtcNowPlus(-age_seconds)).order_by("ended_at", "pk")
        while True:
            # Those that stay are passed over: they must not keep the others.
            read: partial[list[int]] = partial(list, old.values_list("pk", flat=True)[stay : stay + _GROUPS])
            groups = retry_transient("housekeeping", read, using=using)
            for group_id in groups:
                gone: int | None = 0
                while gone == 0:
                    work = partial(_delete_group, old.filter(pk=group_id), group_id, limit, using)
                    gone = retry_transient("housekeeping", work, using=using)
                    if gone is not None and time.monotonic() >= end:
                        return done + Counter(groups_deleted=gone)
                done["groups_deleted"] += gone or 0
                stay += gone is None
            if len(groups) < _GROUPS:
                return done


def _delete_group(old: QuerySet[JobGroup], group_id: int, limit: int, using: str) -> int | None:
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
        room = limit - _delete_rows(members.order_by("group_id", "state", "job_id"), limit, using)
        room -= _delete_rows(server.force_index(pairs, "ix_group_of_parent"), room, using) if room else 0
        if not room:
            return 0
        return JobGroup.objects.using(using).filter(pk=group_id).delete()[0]


def _delete_rows(rows: QuerySet[Any], limit: int, using: str) -> int:
    ids = list(rows.values_list("pk", flat=True)[:limit])
    return vendor(using).delete_by_key(rows.model.objects.using(using), ids) if ids else 0


def _lock_stat_seconds(settings: Settings) -> float:
    return settings.lock_metrics_seconds or 0.0


GROUPS = GroupCleaner()
#: by name, in the order of a pass. What runs, fires or is in use stays: its column is NULL
CLEANERS: dict[str, Cleaner | GroupCleaner] = {
    one.name: one
    for one in (
        # Dead letters have no processed_at.
        Cleaner(
            "events", OutboxEvent, "processed_at", "ix_outbox_processed", setting("outbox_settings.retention_seconds")
        ),
        Cleaner("keys", HeldKey, "created_at", "ix_key_age", lambda settings: KEY_SECONDS),
        Cleaner("records", IdempotencyRecord, "expires_at", "ix_idempotency_expiry", lambda settings: 0.0),
        Cleaner("figures", LockStat, "counted_at", "ix_lock_stat_age", _lock_stat_seconds),
        Cleaner("findings", LockFinding, "last_seen_at", "ix_lock_finding_age", _lock_stat_seconds),
        Cleaner("statistics", JobStat, "counted_at", "ix_job_stat_age", setting("stat_retention_seconds")),
        Cleaner("alarms", JobAlarm, "quiet_at", "ix_job_alarm_quiet", setting("alarm_retention_seconds")),
        Cleaner("redrives", Redrive, "ended_at", "ix_audit_ended", setting("redrive_retention_seconds")),
        Cleaner("audit_events", AuditEvent, "ended_at", "ix_audit_ended", setting("audit_retention_seconds")),
        Cleaner("workers", Worker, "stopped_at", "ix_worker_alive", setting("worker_retention_seconds")),
        Cleaner("archived_jobs", ArchivedJob, "archived_at", "ix_archive_age", setting("archive_retention_seconds")),
        Cleaner(
            "schedule_ticks", ScheduleTick, "created_at", "ix_schedule_tick_age", setting("schedule_retention_seconds")
        ),
        # Those that live workers have are announced all the time.
        Cleaner(
            "schedule_versions",
            ScheduleVersion,
            "announced_at",
            "ix_schedule_version_age",
            setting("schedule_retention_seconds"),
        ),
        Cleaner("schedules", Schedule, "retired_at", "ix_schedule_retired", setting("schedule_retention_seconds")),
        GROUPS,
    )
}


#: rows of mutexes that one pass reads; the next pass goes on behind them
MUTEX_ROWS = 5_000
_BATCH = 200
#: the last key of a mutex that this process has read, by database
_positions: dict[str, str] = {}


def sweep_locks(settings: Settings, *, using: str, limit: int = 1000, seconds: float = math.inf) -> Counter[str]:
    """Delete ended locks in transactions of `limit`, for about `seconds`; then some idle mutexes."""
    freed, end = 0, time.monotonic() + seconds
    # Locks that end during the pass are left for the next one: the number of batches is fixed at the start.
    for _ in range(-(-count_ended_locks(using=using) // limit)):
        gone = sweep(limit, using=using)
        freed += gone
        if gone < limit or time.monotonic() >= end:
            break
    return Counter(locks_freed=freed, mutexes_deleted=_sweep_mutexes(using))


def count_ended_locks(*, using: str) -> int:
    """The number of lease locks that have ended and still have a row."""
    return ended(using).count()


def _sweep_mutexes(using: str) -> int:
    """Delete those of the next MUTEX_ROWS rows that were idle for MUTEX_IDLE_SECONDS, unless a transaction holds them.

    In order of the key: the time of the last use has no index, because every holder would have to write to it.
    """
    after = _positions.get(using, "")
    rows = MutexRow.objects.using(using).filter(pk__gt=after).order_by("pk")
    idle = ExpressionWrapper(_idle(), output_field=BooleanField())
    seen = list(rows.annotate(is_idle=idle).values_list("pk", "is_idle")[:MUTEX_ROWS])
    _positions[using] = seen[-1][0] if len(seen) == MUTEX_ROWS else ""
    keys = [key for key, is_idle in seen if is_idle]
    batches = [keys[first : first + _BATCH] for first in range(0, len(keys), _BATCH)]
    return sum(
        retry_transient("housekeeping", partial(_delete_mutexes, batch, using), using=using) for batch in batches
    )


def _idle() -> Q:
    limit = UtcNowPlus(-MUTEX_IDLE_SECONDS)
    return Q(taken_at__lt=limit) | Q(taken_at__isnull=True, created_at__lt=limit)


def _delete_mutexes(keys: list[str], using: str) -> int:
    server = vendor(using)
    with server.transaction(connections[using]):
        deletions = floor(MUTEX_FLOOR, using)
        if deletions.exists() and not server.lock_rows(deletions):
            # A transaction relies on no row being deleted until it ends; the next pass tries again.
            return 0
        rows = MutexRow.objects.using(using).filter(_idle())
        locked = list(server.lock_rows(rows.filter(pk__in=keys)).values_list("pk", flat=True))
        if locked:
            add_to_floor(MUTEX_FLOOR, 1, using)
        # One DELETE per key: led by a scan, a DELETE would wait for rows that others have locked.
        return sum(rows.filter(pk=key).delete_only()[0] for key in locked)
