"""The only way to claim: READY -> PROCESSING, in passes, until there are enough jobs or no more are due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from django.db import Error

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InsideTransaction
from jobqueue.gates.limits import NO_LIMITS
from jobqueue.gates.rules import RULES_SECONDS, rules
from jobqueue.gates.waiting import closed as gates_closed
from jobqueue.gates.waiting import ended_unstarted
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import Head, aged_look_is_due
from jobqueue.transitions.claiming.queue_memory import NO_CURSOR, GatedQueues, ScanCursors, SinglePriorityCache
from jobqueue.transitions.claiming.request import EXPIRED_BATCH, Request, Taken, ended_before
from jobqueue.transitions.claiming.select_then_update import select_then_update
from jobqueue.transitions.claiming.update_returning import update_returning
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import JobRef, settled
from jobqueue.validation import check_int, check_queue, check_seconds, check_worker

logger = logging.getLogger("jobqueue.transitions")

LIMIT_MAX = 10_000
PASSES_MAX = 10  # an expired job may let the next job of its ordering key in, which has expired, too
#: a worker's claim that has found nothing, and has made a large pass, begins no further one after this: its other
#: queues and its threads wait for it
PASSES_SECONDS = 0.1
#: release_many(), of the room above
_release: list[Callable[[list[Lease]], object]] = []
CURSOR_BATCH = 10  # smaller claims keep the exact order


def release_with(release: Callable[[list[Lease]], object]) -> None:
    """Give back with this what may not start any more when its claim has ended."""
    _release[:] = [release]


def claim(
    queue: str, limit: int = 1, *, worker: str, lease_seconds: float = 60, using: str | None = None
) -> list[Lease]:
    """Up to `limit` leases on due jobs of `queue`, highest priority first, then run_at, then id; [] when none.

    In a queue with STARVE_SECONDS, jobs that have waited longer come first, about once a second. Jobs whose expires_at
    has passed end CANCELED and do not count.

    The leases end at the database's now + lease_seconds (or the task's own longer lease). Rows that another
    transaction has locked are skipped, and one call passes over some thousand jobs that may not start: it need not
    return everything that is due. Committed before it returns: raises InsideTransaction in an open transaction,
    DatabaseBusy after repeated deadlocks, InvalidValue or InvalidType for bad arguments.
    """
    check_queue(queue)
    check_int(limit, "limit", 1, LIMIT_MAX)
    check_worker(worker)
    seconds = check_seconds(lease_seconds, "lease_seconds")
    return Claimer(worker, alias_of(using)).claim(queue, limit, lease_seconds=seconds)


class Claimer:
    """claim() for a process that claims again and again: it remembers how far it has come in each queue."""

    def __init__(self, worker: str, using: str, *, hand_over: bool = False) -> None:
        """`hand_over`: its claims return what they find before they pass over others, which may take seconds."""
        self._worker, self._using, self._hand_over = check_worker(worker), using, hand_over
        self._cursors, self._single_priority = ScanCursors(), SinglePriorityCache()
        self._gated = GatedQueues(using)
        #: the subjects behind whose gates the last claim has put jobs
        self.closed = set[int]()
        #: whether it has left some for the next claim of the queue, which is to follow at once
        self.more = False

    def claim(
        self, queue: str, limit: int, *, lease_seconds: float, head: Head | None = None, paced_max: int | None = None
    ) -> list[Lease]:
        """As claim(), with limits to what it may miss for a short time.

        A batch may pass over jobs that came back with an earlier run_at, for a second, and over higher priorities that
        held only delayed jobs, for a tenth of one. `head` saves the seek for the highest priority; if no other one had
        jobs lately, others may be left out. `paced_max`: at most so many jobs with a rate, which must start at once.
        """
        refuse_open_transaction(self._using, "claim")
        remember, look, begun, self.more = limit >= CURSOR_BATCH, limit, time.monotonic(), False
        leases, self.closed, busy = list[Lease](), set[int](), set[int]()
        if self._is_shut(queue):
            return []
        try:
            for _ in range(PASSES_MAX):
                paced, wanted = _left(paced_max, leases), limit - len(leases)
                request = self._request(queue, wanted, look, lease_seconds, head, remember, paced)
                take = update_returning if request.in_one else select_then_update
                try:
                    taken = retry_transient("claim", partial(take, request), using=self._using)
                except (Error, DatabaseBusy):
                    if leases:
                        break
                    raise
                self.closed |= {one.subject.number for one in taken.blocked} | {*taken.spare}
                busy |= {*taken.unwritten}
                leases += taken.leases
                self._learn(request, taken, remember)
                self._end_late(request, taken)
                if not self._goes_on(request, taken, leases, look, limit, begun):
                    break
                head, look = None, self._next_look(taken, look, limit - len(leases), limit)
        finally:
            # Also if a later pass has failed: an earlier one may have put jobs behind their gates.
            gates_closed(self.closed, using=self._using, unwritten=busy)
        return leases if time.monotonic() - begun < RULES_SECONDS else self._still_startable(leases)

    def _goes_on(
        self, request: Request, taken: Taken, leases: Sequence[Lease], look: int, limit: int, begun: float
    ) -> bool:
        """Whether a claim that began then makes another pass; sets `more`."""
        self.more = len(leases) < limit and _has_more(request, taken, leases)
        if not self._hand_over:
            return self.more
        # Not after a small pass: where each takes long, thousands of them would. And one that came back short has seen
        # all: the next one finds nothing, and says so.
        is_large = len(taken.rows) >= look == max(limit, EXPIRED_BATCH)
        is_late = is_large and time.monotonic() - begun >= PASSES_SECONDS
        return self.more and not leases and not is_late

    def _next_look(self, taken: Taken, look: int, wanted: int, limit: int) -> int:
        """How many jobs the next pass looks at: where some could not start, one and a half times as many as it wants.

        A claim that hands over looks at the same ones again if they were left alone: they are checked now.
        """
        if self._hand_over and taken.passed:
            return look
        most = max(limit, EXPIRED_BATCH)
        if taken.late or taken.passed or not taken.leases:
            return most
        return min(most, wanted + wanted * len(taken.rows) * 3 // (2 * len(taken.leases)))

    def _still_startable(self, leases: list[Lease]) -> list[Lease]:
        """Release those that were paused while their claim waited, as for a lock; returns the others."""
        known = rules(self._using) if leases else self._gated.known
        if not (shut := [lease for lease in leases if known.shuts(lease)]):
            return leases
        try:
            for release in _release:
                release(shut)
        except (Error, DatabaseBusy) as error:
            logger.warning("%d jobs that were paused during their claim start: %s", len(shut), error)
            return leases
        return [lease for lease in leases if lease not in shut]

    def _is_shut(self, queue: str) -> bool:
        limits = self._gated.limits(queue)
        return limits is not NO_LIMITS and self._gated.is_shut(queue, limits)

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
        aged, limits = aged_look_is_due(queue, using=self._using), self._gated.present
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


def _left(most: int | None, leases: Sequence[Lease]) -> int | None:
    return None if most is None else max(0, most - len(leases))


def _has_more(request: Request, taken: Taken, leases: Sequence[Lease]) -> bool:
    """Whether there may be jobs behind those that this pass has looked at and that could not start."""
    passed = taken.passed or (request.in_one and request.excluded and not leases)
    return bool(taken.late or taken.blocked or passed) and not taken.shut_seconds


def refuse_open_transaction(using: str, verb: str) -> None:
    """Raise InsideTransaction when a caller's transaction is open; a test case's own wrapper does not count."""
    if in_open_transaction(using):
        raise InsideTransaction(
            f"{verb}() was called inside transaction.atomic(), or with autocommit off, on {using!r}. It commits by "
            "itself, so that its row locks end before any job runs; nothing was written. Call it outside the block."
        )
