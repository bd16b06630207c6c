"""READY -> PROCESSING."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain

from django.db import Error

from jobqueue import candidates
from jobqueue.candidates import Head
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.open_transaction import in_open_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InsideTransaction
from jobqueue.names import check_int, check_queue, check_seconds, check_worker
from jobqueue.starving import look_is_due
from jobqueue.transitions.at_once import take_at_once, take_from_top
from jobqueue.transitions.expiring import EXPIRED_BATCH, announce_expired, ended_before
from jobqueue.transitions.floors import NO_FLOOR, Floors
from jobqueue.transitions.in_steps import take_in_steps
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.lone_levels import LoneLevels
from jobqueue.transitions.request import NOTHING, Request, Taken

LIMIT_MAX = 10_000
PASSES_MAX = 10  # each may let the next job of an ordering key in, which has expired, too
FLOOR_BATCH = 10  # smaller claims keep the exact order


def claim(
    queue: str, limit: int = 1, *, worker: str, lease_seconds: float = 60, using: str | None = None
) -> list[Lease]:
    """Up to `limit` leases on due jobs of `queue`, highest priority first, then run_at, then id; [] when none.

    With STARVE_SECONDS of the queue, about once a second those that have waited longer come before all others.

    Jobs whose expires_at has passed are ended CANCELED instead and do not count.

    The leases end at the database's now + lease_seconds (or the task's own longer lease). Rows that another
    transaction has locked are skipped, so one call need not see everything that is due. Committed before it
    returns: raises InsideTransaction in an open transaction, DatabaseBusy after repeated deadlocks, InvalidValue
    or InvalidType for bad arguments.
    """
    check_queue(queue)
    check_int(limit, "limit", 1, LIMIT_MAX)
    check_worker(worker)
    seconds = check_seconds(lease_seconds, "lease_seconds")
    alias = alias_of(using)
    refuse_open_transaction(alias, "claim")
    return _take(queue, limit, worker, seconds, alias)


class Claimer:
    """claim() for a process that claims again and again: it remembers how far it has come in each queue."""

    def __init__(self, worker: str, using: str) -> None:
        self._worker, self._using = check_worker(worker), using
        self._floors, self._lone = Floors(), LoneLevels()

    def claim(self, queue: str, limit: int, *, lease_seconds: float, head: Head | None = None) -> list[Lease]:
        """As claim(); a batch may pass over jobs that came back with an earlier run_at, for a second at most, and over
        higher priorities of which only delayed jobs were there, for a tenth of a second. Where `head` is the only
        priority that had jobs within the last second, it may come back short though there are jobs of a lower one.

        `head` spares the look for the highest level.
        """
        floors = self._floors if limit >= FLOOR_BATCH else None
        refuse_open_transaction(self._using, "claim")
        return _take(queue, limit, self._worker, lease_seconds, self._using, floors, head, self._lone)


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
    lone: LoneLevels | None = None,
) -> list[Lease]:
    """Passes until there are enough, or one has met no job that expired: behind those may be others."""
    leases: list[Lease] = []
    request = Request(queue, limit, limit, worker, seconds, using)
    for _ in range(PASSES_MAX):
        try:
            taken = retry_transient(partial(_pass, request, floors, head, lone), using=using)
        except (Error, DatabaseBusy):
            if leases:
                return leases
            raise
        leases += taken.leases
        announce_expired([*ended_before(request.ended, taken.late, using=using), *taken.late], queue, using)
        if not taken.late or len(leases) >= limit:
            return leases
        look = max(limit, EXPIRED_BATCH)
        request, head = replace(request, limit=limit - len(leases), look=look, ended=[]), None
    return leases


def _pass(request: Request, floors: Floors | None, head: Head | None, lone: LoneLevels | None) -> Taken:
    queue, using = request.queue, request.using
    starving = look_is_due(queue, using=using)
    at_once = vendor(using).takes_at_once and request.look == request.limit and not starving
    if at_once and head and head.level is None:
        if (taken := take_from_top(request)).rows:
            return taken
        head = None
    floor = floors.of(queue) if floors else NO_FLOOR
    follows = floor.follows(head)
    begin = Head(queue, floor.level, all_due=True) if follows else head
    levels = candidates.due_levels(queue, using=using, surely=floor.level, head=begin)
    # The first seek runs outside the transaction: an idle poll costs one statement and no BEGIN and COMMIT.
    top = next(levels, None)
    if top is None:
        return NOTHING
    take = partial(take_at_once if at_once else take_in_steps, replace(request, floor=floor))
    brief = lone is not None and head is not None and top == head.level and lone.holds(head)
    taken = take(iter([top])) if brief else NOTHING
    if not taken.rows:
        taken = take(chain([top], levels))
        if lone and len(taken.rows) < request.look:
            lone.looked(queue, taken.rows)
    # Where jobs that starved came first, the last one does not tell how far the claims have come.
    if floors and len(taken.rows) == request.limit and not taken.late and not starving:
        first, last = taken.rows[0], taken.rows[-1]
        alike = (first.priority, first.due_at) == (last.priority, last.due_at)
        job_id = last.pk if alike else None
        floors.keep(queue, floor.moved(last.priority, last.due_at, job_id, head, walked=not follows))
    return taken
