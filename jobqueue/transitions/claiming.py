"""READY -> PROCESSING."""

from __future__ import annotations

from functools import partial
from itertools import chain

from jobqueue import candidates
from jobqueue.candidates import Head
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.open_transaction import in_open_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideTransaction
from jobqueue.names import check_int, check_queue, check_seconds, check_worker
from jobqueue.starving import look_is_due
from jobqueue.transitions.at_once import take_at_once, take_from_top
from jobqueue.transitions.floors import NO_FLOOR, Floors
from jobqueue.transitions.in_steps import take_in_steps
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.request import Request

LIMIT_MAX = 10_000
FLOOR_BATCH = 10  # smaller claims keep the exact order


def claim(
    queue: str, limit: int = 1, *, worker: str, lease_seconds: float = 60, using: str | None = None
) -> list[Lease]:
    """Up to `limit` leases on due jobs of `queue`, highest priority first, then run_at, then id; [] when none.

    With STARVE_SECONDS of the queue, about once a second those that have waited longer come before all others.

    The leases end at the database's now + lease_seconds (or the task's own longer lease). Rows that another
    transaction has locked are skipped, so one call need not see everything that is due. Committed before it
    returns: raises InsideTransaction in an open transaction, DatabaseBusy after repeated deadlocks, InvalidValue
    or InvalidType for bad arguments.
    """
    check_queue(queue)
    check_int(limit, "limit", 1, LIMIT_MAX)
    check_worker(worker)
    seconds = check_seconds(lease_seconds, "lease_seconds")
    alias = using or load().database
    refuse_open_transaction(alias, "claim")
    return retry_transient(lambda: _take(queue, limit, worker, seconds, alias), using=alias)


class Claimer:
    """claim() for a process that claims again and again: it remembers how far it has come in each queue."""

    def __init__(self, worker: str, using: str) -> None:
        self._worker, self._using = check_worker(worker), using
        self._floors = Floors()

    def claim(self, queue: str, limit: int, *, lease_seconds: float, head: Head | None = None) -> list[Lease]:
        """As claim(); a batch may pass over jobs that came back with an earlier run_at, for a second at most, and over
        higher priorities of which only delayed jobs were there, for a tenth of a second.

        `head` spares the look for the highest level.
        """
        floors = self._floors if limit >= FLOOR_BATCH else None
        refuse_open_transaction(self._using, "claim")
        take = partial(_take, queue, limit, self._worker, lease_seconds, self._using, floors, head)
        return retry_transient(take, using=self._using)


def refuse_open_transaction(using: str, verb: str) -> None:
    """Raise InsideTransaction when a caller's transaction is open; a test case's own wrapper does not count."""
    if in_open_transaction(using):
        raise InsideTransaction(
            f"{verb}() was called inside transaction.atomic(), or with autocommit off, on {using!r}. It commits by "
            "itself, so that its row locks end before any job runs; nothing was written. Call it outside the block."
        )


def _take(
    queue: str,
    limit: int,
    worker: str,
    seconds: float,
    using: str,
    floors: Floors | None = None,
    head: Head | None = None,
) -> list[Lease]:
    at_once = vendor(using).takes_at_once and not look_is_due(queue, using=using)
    if at_once and head and head.level is None:
        if leases := take_from_top(Request(queue, limit, worker, seconds, using)):
            return leases
        head = None
    floor = floors.of(queue) if floors else NO_FLOOR
    begin = Head(queue, floor.level, all_due=True) if floor.follows(head) else head
    levels = candidates.due_levels(queue, using=using, surely=floor.level, head=begin)
    # The first seek runs outside the transaction: an idle poll costs one statement and no BEGIN and COMMIT.
    top = next(levels, None)
    if top is None:
        return []
    request = Request(queue, limit, worker, seconds, using, floor)
    rows, leases = (take_at_once if at_once else take_in_steps)(request, chain([top], levels))
    # Where jobs that starved come before a higher level, the last one does not tell how far the claims have come.
    if floors and len(rows) == limit and rows[0].priority >= rows[-1].priority:
        alike = (rows[0].priority, rows[0].due_at) == (rows[-1].priority, rows[-1].due_at)
        floors.keep(queue, rows[-1].priority, rows[-1].due_at, rows[-1].pk if alike else None, head)
    return leases
