"""What a block of statements really locked, as the server reports it: text, JSON, SVG and an assertion for tests.

For tests and shells; nothing in the package imports it.
"""

from __future__ import annotations

from jobqueue.db.diagnostics import HeldLock, LockKind
from jobqueue.inspect.footprint import Footprint, assert_locks_at_most, lock_footprint

__all__ = ["Footprint", "HeldLock", "LockKind", "assert_locks_at_most", "lock_footprint"]
