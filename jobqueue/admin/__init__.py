"""The Django admin: pages show state and offer verbs such as retry; they edit no rows. They run in web processes.

actions has the verbs of a job, job_states the names of its states and which verbs each allows.
"""

from jobqueue.admin.failure_note import FailureNoteAdmin
from jobqueue.admin.idempotency import IdempotencyRecordAdmin
from jobqueue.admin.job import JobAdmin
from jobqueue.admin.lock_activity import LockActivityAdmin
from jobqueue.admin.outbox import OutboxEventAdmin
from jobqueue.admin.queues import QueueAdmin
from jobqueue.admin.redrive import RedriveAdmin
from jobqueue.admin.schedules import ScheduleAdmin
from jobqueue.admin.worker import WorkerAdmin

__all__ = [
    "FailureNoteAdmin",
    "IdempotencyRecordAdmin",
    "JobAdmin",
    "LockActivityAdmin",
    "OutboxEventAdmin",
    "QueueAdmin",
    "RedriveAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]
