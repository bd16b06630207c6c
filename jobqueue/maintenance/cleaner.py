"""Deletes old rows, table by table, in short transactions; groups with their members."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from django.db import connections
from django.db.models import Model, QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.grouping.members import still_read
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
    OutboxEvent,
    Redrive,
    Schedule,
    ScheduleTick,
    ScheduleVersion,
    Worker,
)

#: age of rows that transactions only lock and never read: the next use of the key inserts a missing one again
KEY_SECONDS = 86_400.0
#: groups of one read
_GROUPS = 100


@dataclass(frozen=True, slots=True)
class Cleaner:
    """Deletes the rows of one table whose `column` is older than `age_seconds`, oldest first, by `index`."""

    name: str
    model: type[Model]
    column: str
    index: str
    age_seconds: Callable[[Settings], float | None]  # None: keep all rows

    def run_once(self, settings: Settings, *, using: str, limit: int = 1000, seconds: float = math.inf) -> Counter[str]:
        """Delete rows for about `seconds`, in transactions of `limit`; rows that others have locked stay."""
        age_seconds = self.age_seconds(settings)
        if age_seconds is None:
            return Counter()
        before = UtcNowPlus(-age_seconds) if age_seconds else UtcNow()
        rows = self.model._default_manager.using(using).filter(**{f"{self.column}__lt": before}).order_by(self.column)
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
            keys = list(server.lock_rows(server.force_index(rows, self.index)).values_list("pk", flat=True)[:limit])
            return self.model._default_manager.using(rows.db).filter(pk__in=keys).delete()[0] if keys else 0


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


def _key_seconds(settings: Settings) -> float:
    return KEY_SECONDS


def _lock_stat_seconds(settings: Settings) -> float:
    return settings.lock_metrics_seconds or 0.0


#: dead letters stay: their processed_at is NULL
OUTBOX_EVENTS = Cleaner(
    "events",
    OutboxEvent,
    "processed_at",
    "ix_outbox_processed",
    lambda settings: settings.outbox_settings.retention_seconds,
)
KEYS = Cleaner("keys", HeldKey, "created_at", "ix_key_age", _key_seconds)
IDEMPOTENCY_RECORDS = Cleaner("records", IdempotencyRecord, "expires_at", "ix_idempotency_expiry", lambda settings: 0.0)
LOCK_STATS = Cleaner("figures", LockStat, "counted_at", "ix_lock_stat_age", _lock_stat_seconds)
LOCK_FINDINGS = Cleaner("findings", LockFinding, "last_seen_at", "ix_lock_finding_age", _lock_stat_seconds)
#: those under way stay: their ended_at is NULL
REDRIVES = Cleaner(
    "redrives", Redrive, "ended_at", "ix_audit_ended", lambda settings: settings.redrive_retention_seconds
)
#: those under way stay: their ended_at is NULL
AUDIT_EVENTS = Cleaner(
    "audit_events", AuditEvent, "ended_at", "ix_audit_ended", lambda settings: settings.audit_retention_seconds
)
#: those that run stay: their stopped_at is NULL
WORKERS = Cleaner(
    "workers", Worker, "stopped_at", "ix_worker_alive", lambda settings: settings.worker_retention_seconds
)
ARCHIVED_JOBS = Cleaner(
    "archived_jobs", ArchivedJob, "archived_at", "ix_archive_age", lambda settings: settings.archive_retention_seconds
)
SCHEDULE_TICKS = Cleaner(
    "schedule_ticks",
    ScheduleTick,
    "created_at",
    "ix_schedule_tick_age",
    lambda settings: settings.schedule_retention_seconds,
)
#: those that live workers have are announced all the time
SCHEDULE_VERSIONS = Cleaner(
    "schedule_versions",
    ScheduleVersion,
    "announced_at",
    "ix_schedule_version_age",
    lambda settings: settings.schedule_retention_seconds,
)
#: those in use stay: their retired_at is NULL
SCHEDULES = Cleaner(
    "schedules", Schedule, "retired_at", "ix_schedule_retired", lambda settings: settings.schedule_retention_seconds
)
JOB_STATS = Cleaner(
    "statistics", JobStat, "counted_at", "ix_job_stat_age", lambda settings: settings.stat_retention_seconds
)
#: those that fire stay: their quiet_at is NULL
JOB_ALARMS = Cleaner(
    "alarms", JobAlarm, "quiet_at", "ix_job_alarm_quiet", lambda settings: settings.alarm_retention_seconds
)
GROUPS = GroupCleaner()
CLEANERS: tuple[Cleaner | GroupCleaner, ...] = (
    OUTBOX_EVENTS,
    KEYS,
    IDEMPOTENCY_RECORDS,
    LOCK_STATS,
    LOCK_FINDINGS,
    JOB_STATS,
    JOB_ALARMS,
    REDRIVES,
    AUDIT_EVENTS,
    WORKERS,
    ARCHIVED_JOBS,
    SCHEDULE_TICKS,
    SCHEDULE_VERSIONS,
    SCHEDULES,
    GROUPS,
)
