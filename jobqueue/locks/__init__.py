"""Locks: mutex() for a transaction, lease_lock() for a time, named_lock() for a connection, and redis_lock().

mutex_rows, lease, named and redis hold one kind each; lock has their base classes, Lock and TimedLock. Which one
to use when: docs/howto/locks.md. Callers' threads acquire and release them; no thread of the package does.
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
