"""The only way to claim: READY -> PROCESSING, in passes, until there are enough jobs or no more are due."""

from __future__ import annotations

from functools import partial

from django.db import Error

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InsideTransaction
from jobqueue.gates.opening import closed as gates_closed
from jobqueue.gates.opening import ended_unstarted
from jobqueue.gates.whole_queues import NO_LIMITS
from jobqueue.models import Job
from jobqueue.transitions.claiming.aging import look_is_due
from jobqueue.transitions.claiming.candidates import Head
from jobqueue.transitions.claiming.cursor import NO_CURSOR, ScanCursors, SinglePriorityCache
from jobqueue.transitions.claiming.expiring import EXPIRED_BATCH, ended_before
from jobqueue.transitions.claiming.gating import GatedQueues
from jobqueue.transitions.claiming.request import Request, Taken
from jobqueue.transitions.claiming.select_then_update import select_then_update
from jobqueue.transitions.claiming.update_returning import update_returning
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import JobRef, settled
from jobqueue.validation import check_int, check_queue, check_seconds, check_worker

LIMIT_MAX = 10_000
PASSES_MAX = 10  # an expired job may let the next job of its ordering key in, which has expired, too
CURSOR_BATCH = 10  # smaller claims keep the exact order


def claim(
    queue: str, limit: int = 1, *, worker: str, lease_seconds: float = 60, using: str | None = None
) -> list[Lease]:
    """Up to `limit` leases on due jobs of `queue`, highest priority first, then run_at, then id; [] when none.

    In a queue with STARVE_SECONDS, jobs that have waited longer come first, about once a second. Jobs whose expires_at
    has passed end CANCELED and do not count.

    The leases end at the database's now + lease_seconds (or the task's own longer lease). Rows that another
    transaction has locked are skipped, so one call need not return everything that is due. Committed before it
    returns: raises InsideTransaction in an open transaction, DatabaseBusy after repeated deadlocks, InvalidValue
    or InvalidType for bad arguments.
    """
    check_queue(queue)
    check_int(limit, "limit", 1, LIMIT_MAX)
    check_worker(worker)
    seconds = check_seconds(lease_seconds, "lease_seconds")
    return Claimer(worker, alias_of(using)).claim(queue, limit, lease_seconds=seconds)


class Claimer:
    """claim() for a process that claims again and again: it remembers how far it has come in each queue."""

    def __init__(self, worker: str, using: str) -> None:
        self._worker, self._using = check_worker(worker), using
        self._cursors, self._single_priority = ScanCursors(), SinglePriorityCache()
        self._gated = GatedQueues(using)

    def claim(
        self, queue: str, limit: int, *, lease_seconds: float, head: Head | None = None, paced_max: int | None = None
    ) -> list[Lease]:
        """As claim(), with limits to what it may miss for a short time.

        A batch may pass over jobs that came back with an earlier run_at, for a second at most, and over higher
        priorities that held only delayed jobs, for a tenth of a second. Where `head` is the only priority that had
        jobs within the last second, it may return fewer although jobs of a lower priority are due. `head` saves the
        seek for the highest priority. `paced_max`: at most so many jobs with a rate, because they must start at once.
        """
        refuse_open_transaction(self._using, "claim")
        limits = self._gated.limits(queue)
        if limits is not NO_LIMITS and self._gated.is_shut(queue, limits):
            return []
        leases: list[Lease] = []
        remember, look, closed = limit >= CURSOR_BATCH, limit, set[int]()
        try:
            for _ in range(PASSES_MAX):
                paced = None if paced_max is None else max(0, paced_max - len(leases))
                request = self._request(queue, limit - len(leases), look, lease_seconds, head, remember, paced)
                take = update_returning if request.in_one else select_then_update
                try:
                    taken = retry_transient("claim", partial(take, request), using=self._using)
                except (Error, DatabaseBusy):
                    if leases:
                        return leases
                    raise
                closed |= {one.subject.number for one in taken.blocked} | {*taken.spare}
                leases += taken.leases
                self._learn(request, taken, remember)
                self._end_late(request, taken)
                passed = taken.passed or (request.in_one and request.excluded and not leases)
                if not (taken.late or taken.blocked or passed) or taken.shut_seconds or len(leases) >= limit:
                    break
                # Behind expired and blocked jobs there may be others.
                head, look = None, _next_look(taken, limit - len(leases), max(limit, EXPIRED_BATCH))
        finally:
            # Also if a later pass has failed: an earlier one may have put jobs behind their gates.
            gates_closed(closed, using=self._using)
        return leases

    def _end_late(self, request: Request, taken: Taken) -> None:
        """What follows the commit that has ended expired jobs."""
        queue, using = request.queue, self._using
        late = [*ended_before(request.ended, taken.late, using=using), *taken.late]
        refs = [JobRef(row.pk, queue, row.task, row.ordering_key, using) for row in late]
        settled({Job.Status.CANCELED: refs}, using)
        if request.gated:
            ended_unstarted([(row.task, row.concurrency_key) for row in taken.late], queue, using=using)

    def _request(
        self,
        queue: str,
        limit: int,
        look: int,
        seconds: float,
        head: Head | None,
        remember: bool,
        paced_max: int | None,
    ) -> Request:
        aged, limits = look_is_due(queue, using=self._using), self._gated.present
        one = vendor(self._using).has_update_returning and limits.none
        excluded = self._gated.excluded(queue, in_one=one)
        in_one = one and look == limit and not aged and excluded is not None
        from_top = in_one and head is not None and head.level is None
        head = head if head is not None and head.level is not None else None
        # Jobs that were opened have an older run_at, perhaps another priority, and must be found at once.
        gated = excluded is None
        cursor = self._cursors.of(queue) if remember and not gated else NO_CURSOR
        only = head.level if head is not None and not gated and self._single_priority.holds(queue, head.level) else None
        return Request(
            queue,
            limit,
            look,
            self._worker,
            seconds,
            self._using,
            head=head,
            cursor=cursor,
            only_level=only,
            follows=cursor.follows(head),
            from_top=from_top,
            in_one=in_one,
            gated=gated,
            known=self._gated.known,
            limits=limits,
            paced_max=paced_max,
            excluded=excluded or (),
            aged=aged,
        )

    def _learn(self, request: Request, taken: Taken, remember: bool) -> None:
        """Keep what this pass shows about the queue."""
        rows, request = taken.rows, taken.narrowed or request
        if taken.shut_seconds:
            self._gated.shut(request.queue, taken.shut_seconds)
        if taken.is_full:
            self._gated.full(request.queue)
        if request.in_one and request.excluded and not rows:
            self._gated.look(request.queue)
        if taken.narrowed is not None and not rows:
            # The limits of the queue have left no room: nothing was looked at.
            return
        if taken.passed or request.gated:
            tasks = {row.task for row in rows}
            self._gated.learn(request.queue, tasks, blocked=taken.passed or bool(taken.blocked))
            return
        if taken.from_top or request.aged:
            # Neither tells how far the claims have come: other levels were not looked at, or aged jobs came first.
            return
        levels = {row.priority for row in rows}
        if len(rows) < request.look and request.only_level not in levels:
            self._single_priority.keep(request.queue, levels)
        if remember and len(rows) == request.limit and not taken.late:
            first, last = rows[0], rows[-1]
            job_id = last.pk if (first.priority, first.due_at) == (last.priority, last.due_at) else None
            moved = request.cursor.moved(last.priority, last.due_at, job_id, request.head, walked=not request.follows)
            self._cursors.keep(request.queue, moved)


def _next_look(taken: Taken, wanted: int, most: int) -> int:
    """How many jobs the next pass looks at: where some could not start, as many as bring `wanted`, and half as many."""
    if taken.late or taken.passed or not taken.leases:
        return most
    return min(most, wanted + wanted * len(taken.rows) * 3 // (2 * len(taken.leases)))


def refuse_open_transaction(using: str, verb: str) -> None:
    """Raise InsideTransaction when a caller's transaction is open; a test case's own wrapper does not count."""
    if in_open_transaction(using):
        raise InsideTransaction(
            f"{verb}() was called inside transaction.atomic(), or with autocommit off, on {using!r}. It commits by "
            "itself, so that its row locks end before any job runs; nothing was written. Call it outside the block."
        )
