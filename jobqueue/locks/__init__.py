"""Locks in the database you have: for a transaction, for a time, for a connection; and redis-py's, with their manners.

Which one when, and when none at all: docs/howto/locks.md.
"""

from __future__ import annotations

from jobqueue.locks.lease import LeaseLock, lease_lock
from jobqueue.locks.lock import Lock, lock_all
from jobqueue.locks.mutex_rows import Mutex, amutex, mutex, mutex_many
from jobqueue.locks.named import NamedLock, named_lock
from jobqueue.locks.redis import RedisLock, redis_lock

__all__ = [
    "LeaseLock",
    "Lock",
    "Mutex",
    "NamedLock",
    "RedisLock",
    "amutex",
    "lease_lock",
    "lock_all",
    "mutex",
    "mutex_many",
    "named_lock",
    "redis_lock",
]
