"""The bounded wait of an enqueue for a key that another open transaction has used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connections

from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.exceptions import DatabaseBusy

# In autocommit mode a shorter limit of the session is retried until the time is over; this is the minimum.
_LEAST_SECONDS = 0.001


@contextmanager
def bounded_wait(until: float, using: str) -> Iterator[None]:
    """A transaction, or a savepoint in the caller's, that waits for locks until `until` (monotonic) and no longer.

    A shorter limit of the session applies. Raises DatabaseBusy; the caller's transaction stays usable.
    """
    connection, locks = connections[using], vendor(using).locks
    alone = not in_callers_transaction(connection)
    try:
        with locks.brief_transaction(connection, max(_LEAST_SECONDS, until - time.monotonic())):
            yield
    except OperationalError as error:
        # Outside a transaction retry_transient() repeats it while there is time.
        if connection.needs_rollback or not locks.is_lock_timeout(error) or (alone and time.monotonic() < until):
            raise
        raise DatabaseBusy(
            "another transaction has used the same dedupe key or ordering key and has not come to its commit or "
            "rollback, so this enqueue gave up waiting. Nothing was written. Try again; if it happens often, "
            "enqueue at the end of long transactions, or after their commit, and look for one that was left open."
        ) from error
