"""Waits for a mutex that the database ends by itself."""

from __future__ import annotations

from jobqueue.exceptions import LockNotAcquired


def wait_ended(key: str, error: BaseException) -> LockNotAcquired:
    """The error for a wait for `key` that a limit of the session ended, and with it the transaction."""
    return LockNotAcquired(
        f"mutex {key} was not free in time: the database ended the wait by itself ({error}). This transaction cannot "
        "go on; roll it back and try again later, raise that limit, or give the call a timeout_seconds below it."
    )
