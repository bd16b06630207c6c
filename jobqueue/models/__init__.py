"""The tables. Any code may read them; only jobqueue.transitions and jobqueue.producer write a job's state.

docs/reference/schema.md shows their DDL for each database.
"""

from jobqueue.models.counter import CounterShard
from jobqueue.models.idempotency import Allocation, IdempotencyRecord
from jobqueue.models.job import Job, JobAttempt
from jobqueue.models.lock_activity import LockFinding, LockStat
from jobqueue.models.locks import FenceFloor, LockRow, MutexRow
from jobqueue.models.ordering import LaneEntry, OrderingKey
from jobqueue.models.outbox import OutboxEvent, OutboxKey
from jobqueue.models.worker import Worker

__all__ = [
    "Allocation",
    "CounterShard",
    "FenceFloor",
    "IdempotencyRecord",
    "Job",
    "JobAttempt",
    "LaneEntry",
    "LockFinding",
    "LockRow",
    "LockStat",
    "MutexRow",
    "OrderingKey",
    "OutboxEvent",
    "OutboxKey",
    "Worker",
]
