"""Rows that somebody else has locked: who writes the ends of many jobs does not wait for one of them."""

from __future__ import annotations

from django.db import connections, transaction

from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.transitions.leases import Lease, held


def passes_locked(using: str) -> bool:
    """Whether locked rows can be passed over now: not in a caller's transaction, nor where there are no row locks."""
    return not in_callers_transaction(connections[using]) and not vendor(using).single_writer


def is_locked(lease: Lease) -> bool:
    """Whether the job is held by `lease`, and somebody else has locked its row at this moment."""
    if not passes_locked(lease.using):
        return False

    def look() -> bool:
        with vendor(lease.using).transaction(connections[lease.using]):
            free = bool(vendor(lease.using).lock_rows(held(lease)).values_list("pk", flat=True))
            # Not a commit, which on PostgreSQL would wait for the disk.
            transaction.set_rollback(True, using=lease.using)
        return not free and held(lease).exists()

    return retry_transient(look, using=lease.using)


def touch(lease: Lease) -> None:
    """Write the job's row if `lease` holds it, and change nothing but updated_at: whether a small write is answered.

    Raises what the database raises, and DatabaseBusy.
    """
    retry_transient(lambda: held(lease).update(updated_at=UtcNow()), using=lease.using)
