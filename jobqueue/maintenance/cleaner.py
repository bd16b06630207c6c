"""Deletes old rows, table by table, in bounded batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import Model, QuerySet

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.models import (
    Allocation,
    ArchivedJob,
    AuditEvent,
    IdempotencyRecord,
    JobAlarm,
    JobStat,
    JobStatTotal,
    LockFinding,
    LockStat,
    OrderingKey,
    OutboxEvent,
    OutboxKey,
    QueueStat,
    RedoneStat,
    Redrive,
    Schedule,
    ScheduleTick,
    ScheduleVersion,
    Worker,
)

#: batches of one pass; the rest is left for the next pass
BATCHES_MAX = 100
#: age of rows that transactions only lock and never read: the next use of the key inserts a missing one again
KEY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one pass did."""

    rows: int


@dataclass(frozen=True, slots=True)
class Cleaner:
    """Deletes the rows of one table whose `column` is older than `age_seconds`, oldest first, by `index`."""

    name: str
    model: type[Model]
    column: str
    index: str
    age_seconds: Callable[[Settings], float | None]  # None: keep all rows

    def run_once(self, settings: Settings, *, using: str, limit: int = 1000) -> Deleted:
        """Delete up to BATCHES_MAX batches of `limit` rows, each in its own transaction; rows locked by others stay."""
        seconds = self.age_seconds(settings)
        if seconds is None:
            return Deleted(0)
        before = UtcNowPlus(-seconds) if seconds else UtcNow()
        rows = self.model._base_manager.using(using).filter(**{f"{self.column}__lt": before}).order_by(self.column)
        deleted = 0
        for _ in range(BATCHES_MAX):
            gone = retry_transient("housekeeping", lambda: self._delete_some(rows, limit), using=using)
            deleted += gone
            if gone < limit:
                break
        return Deleted(deleted)

    def _delete_some(self, rows: QuerySet[Any], limit: int) -> int:
        if not rows.exists():
            # The usual case: no transaction.
            return 0
        server = vendor(rows.db)
        with server.transaction(connections[rows.db]):
            keys = list(server.lock_rows(server.force_index(rows, self.index)).values_list("pk", flat=True)[:limit])
            return self.model._base_manager.using(rows.db).filter(pk__in=keys).delete()[0] if keys else 0


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
OUTBOX_KEYS = Cleaner("keys", OutboxKey, "created_at", "ix_outbox_key_age", _key_seconds)
IDEMPOTENCY_RECORDS = Cleaner("records", IdempotencyRecord, "expires_at", "ix_idempotency_expiry", lambda settings: 0.0)
LOCK_STATS = Cleaner("figures", LockStat, "counted_at", "ix_lock_stat_age", _lock_stat_seconds)
LOCK_FINDINGS = Cleaner("findings", LockFinding, "last_seen_at", "ix_lock_finding_age", _lock_stat_seconds)
REDONE_STATS = Cleaner("redone_figures", RedoneStat, "last_seen_at", "ix_redone_stat_age", _lock_stat_seconds)
ORDERING_KEYS = Cleaner("ordering_keys", OrderingKey, "created_at", "ix_ordering_key_age", _key_seconds)
#: those under way stay: their ended_at is NULL
REDRIVES = Cleaner(
    "redrives", Redrive, "ended_at", "ix_redrive_ended", lambda settings: settings.redrive_retention_seconds
)
#: those under way stay: their ended_at is NULL
AUDIT_EVENTS = Cleaner(
    "audit_events", AuditEvent, "ended_at", "ix_audit_ended", lambda settings: settings.audit_retention_seconds
)
#: those that run stay: their stopped_at is NULL
WORKERS = Cleaner(
    "workers", Worker, "stopped_at", "ix_worker_alive", lambda settings: settings.worker_retention_seconds
)
ALLOCATIONS = Cleaner(
    "allocations", Allocation, "created_at", "ix_allocation_age", lambda settings: settings.allocation_retention_seconds
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
    "statistics", JobStat, "begins_at", "ix_job_stat_age", lambda settings: settings.stat_retention_seconds
)
QUEUE_STATS = Cleaner(
    "queue_statistics",
    QueueStat,
    "begins_at",
    "ix_queue_stat_age",
    lambda settings: settings.stat_retention_seconds,
)
JOB_STAT_TOTALS = Cleaner(
    "statistics_totals",
    JobStatTotal,
    "counted_at",
    "ix_stat_total_age",
    lambda settings: settings.stat_retention_seconds,
)
#: those that fire stay: their quiet_at is NULL
JOB_ALARMS = Cleaner(
    "alarms", JobAlarm, "quiet_at", "ix_job_alarm_quiet", lambda settings: settings.alarm_retention_seconds
)
CLEANERS = (
    OUTBOX_EVENTS,
    OUTBOX_KEYS,
    IDEMPOTENCY_RECORDS,
    LOCK_STATS,
    LOCK_FINDINGS,
    REDONE_STATS,
    JOB_STATS,
    QUEUE_STATS,
    JOB_STAT_TOTALS,
    JOB_ALARMS,
    ORDERING_KEYS,
    REDRIVES,
    AUDIT_EVENTS,
    WORKERS,
    ALLOCATIONS,
    ARCHIVED_JOBS,
    SCHEDULE_TICKS,
    SCHEDULE_VERSIONS,
    SCHEDULES,
)
