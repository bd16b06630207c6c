"""What a block of statements really locked, told by the server: text, JSON, a picture, and an assertion for tests."""

from __future__ import annotations

from jobqueue.db.lock_facts import HeldLock, LockKind
from jobqueue.inspect.footprint import Footprint, assert_locks_at_most, lock_footprint

__all__ = ["Footprint", "HeldLock", "LockKind", "assert_locks_at_most", "lock_footprint"]
