"""Who is to know that the code which runs under a lease has acked it by itself, as a batch handler may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from django.db import connections, transaction

from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.transitions.leases import Lease

Hear = Callable[[Lease], None]

_hears: ContextVar[Hear | None] = ContextVar("jobqueue_hears_acks", default=None)


@contextmanager
def observe_acks(hear: Hear) -> Iterator[None]:
    """Within the block, hear(lease) is called for every ack that code of this context has committed."""
    mark = _hears.set(hear)
    try:
        yield
    finally:
        _hears.reset(mark)


def notify_ack_observer(leases: Iterable[Lease]) -> None:
    """These were acked: now, or with the commit of the open transaction. After a rollback nobody hears of them."""
    hear = _hears.get()
    if hear is None:
        return
    for lease in leases:
        if not in_open_transaction(lease.using):
            hear(lease)
        elif connections[lease.using].in_atomic_block:
            transaction.on_commit(partial(hear, lease), using=lease.using)
        # Else autocommit was turned off by hand, and nobody can tell whether it will be committed.
