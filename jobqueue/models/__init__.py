"""The tables; job.py has a job's states. Any code may read them; only transitions and producer write a job's state.

docs/reference/schema.md says who writes each table, how it grows, and what deletes its rows.
"""

from django.apps import apps

from jobqueue.exceptions import WrongSettings

if apps.apps_ready and not apps.is_installed("jobqueue"):
    # Django's own error here names a model that the caller never heard of.
    raise WrongSettings(
        "'jobqueue' is not in INSTALLED_APPS, so its tables are unknown. Nothing was done; add \"jobqueue\" to "
        "INSTALLED_APPS and run: python manage.py migrate"
    )

from jobqueue.models.alarm import JobAlarm
from jobqueue.models.archive import ArchivedJob
from jobqueue.models.audit import AuditEvent, Redrive
from jobqueue.models.counter import CounterShard
from jobqueue.models.failure_note import FailureNote
from jobqueue.models.flow import BreakerState, FlowRule, Gate, GateSlot, GateWait
from jobqueue.models.group import GroupMember, GroupParent, JobGroup
from jobqueue.models.idempotency import IdempotencyRecord
from jobqueue.models.job import Job, JobAttempt
from jobqueue.models.lock_activity import LockFinding, LockStat
from jobqueue.models.locks import LockRow, MutexRow
from jobqueue.models.ordering import HeldKey, LaneEntry
from jobqueue.models.outbox import OutboxEvent
from jobqueue.models.result_expiry import ResultExpiry
from jobqueue.models.schedule import Schedule, ScheduleTick, ScheduleVersion
from jobqueue.models.stat import JobStat
from jobqueue.models.tag import JobTag
from jobqueue.models.worker import Worker

__all__ = [
    "ArchivedJob",
    "AuditEvent",
    "BreakerState",
    "CounterShard",
    "FailureNote",
    "FlowRule",
    "Gate",
    "GateSlot",
    "GateWait",
    "GroupMember",
    "GroupParent",
    "HeldKey",
    "IdempotencyRecord",
    "Job",
    "JobAlarm",
    "JobAttempt",
    "JobGroup",
    "JobStat",
    "JobTag",
    "LaneEntry",
    "LockFinding",
    "LockRow",
    "LockStat",
    "MutexRow",
    "OutboxEvent",
    "Redrive",
    "ResultExpiry",
    "Schedule",
    "ScheduleTick",
    "ScheduleVersion",
    "Worker",
]
