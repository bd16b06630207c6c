"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from jobqueue.payload import JSON

#: what `id` may be besides the ids of system checks ("jobqueue.E012"), in the order of docs/reference/doctor.md
IDS = (
    "database_unreachable", "not_checked", "check_failed", "task_module_failed",
    "migrations_unapplied", "table_missing", "index_missing", "index_differs", "claim_plan",
    "clock_skew", "session_zone", "server_isolation", "table_locked", "read_only", "old_transaction",
    "connections_short", "connections_used",
    "idle_limit", "durability", "lock_wait_timeout", "driver_timeouts", "autovacuum_off", "dead_rows",
    "idle_transactions", "no_wal", "busy_timeout", "network_file", "memory_database",
    "no_worker", "worker_silent", "worker_versions", "queue_unserved", "leases_lapsed", "lease_short",
    "foreign_claimer", "retries_multiply",
    "schedule_unknown_task", "schedule_unannounced", "schedule_late", "schedule_missed",
    "broker_unreachable", "redis_unreachable", "events_unrouted",
    "alarm_fires", "alarms_stale",
)  # fmt: skip


class Level(StrEnum):
    """How bad it is. An information needs no action."""

    ERROR = "error"  # jobs do not run, or run in a way that was promised not to happen
    WARNING = "warning"  # it works now but may stop working, or it costs more than necessary
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `id` is one of IDS or the id of a system check; `text` and `fix` are English.

    `evidence` is JSON: what was read, with instants as ISO 8601 in UTC and durations in seconds.
    """

    level: Level
    id: str
    text: str
    fix: str
    evidence: dict[str, JSON]

    @property
    def is_bad(self) -> bool:
        """Whether it is an error or a warning."""
        return self.level is not Level.INFO
