"""The only way to claim: READY -> PROCESSING, in passes, until there are enough jobs or no more are due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from django.db import Error

from jobqueue.base.validation import check_int, check_queue, check_seconds, check_worker
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InsideTransaction
from jobqueue.gates.admit import make_room
from jobqueue.gates.limits import NO_LIMITS, Limits, limited_tasks, limits_at
from jobqueue.gates.rules import RULES_SECONDS, Rules, fresh_rules, rules, rules_to_start_by
from jobqueue.gates.slots import running
from jobqueue.gates.waiting import ended_unstarted, recheck_closed
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import Head, aged_look_is_due
from jobqueue.transitions.claiming.plans import (
    EXPIRED_BATCH,
    CheckEachJob,
    LockAndStamp,
    OneStatement,
    Taken,
    ended_before,
)
from jobqueue.transitions.claiming.queue_memory import Beginning, Queues
from jobqueue.transitions.claiming.select_then_update import select_then_update
from jobqueue.transitions.claiming.update_returning import update_returning
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import JobRef, settled

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


@dataclass(slots=True)
class _Call:
    """One call of Claimer.claim(), with the rules by which it claims."""

    queue: str
    limit: int
    seconds: float
    paced_max: int | None
    begun: float
    known: Rules
    limits: Limits  # of the whole queue
    leases: list[Lease] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)  # gates that are to be looked at soon

    @property
    def wanted(self) -> int:
        """How many more jobs it may take."""
        return self.limit - len(self.leases)


class Claimer:
    """claim() for a process that claims again and again: it remembers how far it has come in each queue."""

    def __init__(self, worker: str, using: str, *, queues: Queues | None = None, hand_over: bool = False) -> None:
        """`hand_over`: its claims return what they find before they pass over others, which may take seconds."""
        self._worker, self._using, self._hand_over = check_worker(worker), using, hand_over
        self._queues = Queues() if queues is None else queues
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
        begun, look, self.more, self.closed = time.monotonic(), limit, False, set[int]()
        known = self._rules()
        call = _Call(queue, limit, lease_seconds, paced_max, begun, known, limits_at(queue, known))
        if call.limits is not NO_LIMITS and self._is_shut(call):
            return []
        if not call.limits.none and not self._queues[queue].has_gate:
            make_room(queue, self._using)
            self._queues[queue].has_gate = True
        try:
            for passes in range(PASSES_MAX):
                plan = self._plan(call, look, head, is_first=not passes)
                # From its commit on the jobs are leased to this worker, whether the answer arrives or not.
                if isinstance(plan, OneStatement):
                    take = partial(update_returning, plan)
                else:
                    take = partial(select_then_update, plan)
                try:
                    taken = retry_transient("claim", take, using=self._using)
                except (Error, DatabaseBusy):
                    if call.leases:
                        break  # what the earlier passes have leased must run
                    raise
                self._note(call, plan, taken)
                if not self._goes_on(call, plan, taken, look):
                    break
                head, look = None, self._next_look(call, taken, look)
        finally:
            # Also if a later pass has failed: an earlier one may have put jobs behind their gates.
            recheck_closed(self.closed, using=self._using, unwritten=call.busy)
        return call.leases if time.monotonic() - begun < RULES_SECONDS else self._still_startable(call)

    def _rules(self) -> Rules:
        """What operators have set, at most a moment ago. Raises the database's error if that cannot be read."""
        known = fresh_rules(self._using)
        if known is None:
            known = retry_transient("claim", partial(rules_to_start_by, self._using), using=self._using)
        return known

    def _is_shut(self, call: _Call) -> bool:
        """Whether the claim would bring nothing: the queue is paused, full, or its next token is not there yet.

        One statement, and no lock, if it was full when it was last asked.
        """
        memory, most = self._queues[call.queue], call.limits.most
        if call.limits.paused or call.begun < memory.shut_until:
            return True
        if most is None or not memory.full:
            return False
        memory.full = (
            retry_transient("claim", partial(running, call.queue, most, self._using), using=self._using) >= most
        )
        return memory.full

    def _plan(self, call: _Call, look: int, head: Head | None, *, is_first: bool) -> OneStatement | LockAndStamp:
        """The cheapest plan that may be used now. It checks no job while none of the queue seems to have a limit.

        A further pass may look at more jobs than it takes: those that it left alone could be in front of others.
        """
        queue, limits, memory, using = call.queue, call.limits, self._queues[call.queue], self._using
        what = (queue, call.wanted, look, self._worker, call.seconds, using)
        paced = None if call.paced_max is None else max(0, call.paced_max - len(call.leases))
        aged, in_one = aged_look_is_due(queue, using=using), vendor(using).has_update_returning and limits.none
        seen = head if head is not None and head.level is not None else None
        limited = limited_tasks(queue, call.known)
        if call.known.breakers or (limited and (not is_first or memory.checks_limits(in_one=in_one))):
            return CheckEachJob(*what, Beginning(seen), limits=limits, paced_max=paced, aged=aged, known=call.known)
        begin = memory.beginning(seen, with_cursor=call.limit >= CURSOR_BATCH)
        if in_one and look == call.wanted and not aged:
            return OneStatement(*what, begin, limited, unseen_top=head is not None and seen is None)
        return LockAndStamp(*what, begin, limited, limits, paced, aged)

    def _note(self, call: _Call, plan: OneStatement | LockAndStamp, taken: Taken) -> None:
        """Keep what a committed pass has leased, ended and put behind gates, and what it shows about the queue."""
        self.closed |= {one.subject.number for one in taken.blocked} | {*taken.unused_slots}
        call.busy |= {*taken.unwritten}
        call.leases += taken.leases
        self._learn(call, plan, taken)
        ended = plan.ended if isinstance(plan, LockAndStamp) else ()
        late = [*ended_before(ended, taken.late, using=self._using), *taken.late]
        refs = [JobRef(row.pk, call.queue, row.task, row.ordering_key, self._using) for row in late]
        settled({Job.Status.CANCELED: refs}, self._using)
        if isinstance(plan, CheckEachJob):
            ended_unstarted([(row.task, row.concurrency_key) for row in taken.late], call.queue, using=self._using)

    def _learn(self, call: _Call, plan: OneStatement | LockAndStamp, taken: Taken) -> None:
        memory, rows, plan = self._queues[call.queue], taken.rows, taken.narrowed or plan
        if taken.shut_seconds:
            memory.shut(taken.shut_seconds)
        memory.has_gate = memory.has_gate and not taken.no_gate
        memory.full = memory.full or taken.is_full
        if isinstance(plan, OneStatement) and plan.passed_over and not rows:
            memory.checked_at = 0.0  # the next claim checks its jobs: what this one took without that was nothing
        if taken.narrowed is not None and not rows:
            # The limits of the queue have left no room: nothing was looked at.
            return
        if taken.passed or isinstance(plan, CheckEachJob):
            tasks = {row.task for row in rows}
            if taken.passed or taken.blocked or not tasks.isdisjoint(limited_tasks(call.queue, call.known)):
                memory.met_limit()
            return
        if taken.from_top or (isinstance(plan, LockAndStamp) and plan.aged):
            # Neither tells how far the claims have come: other levels were not looked at, or aged jobs came first.
            return
        levels = {row.priority for row in rows}
        if len(rows) < plan.look and plan.begin.only_level not in levels:
            memory.saw(levels)
        if call.limit >= CURSOR_BATCH and len(rows) == plan.limit and not taken.late:
            first, last, begin = rows[0], rows[-1], plan.begin
            job_id = last.pk if (first.priority, first.due_at) == (last.priority, last.due_at) else None
            memory.cursor = begin.cursor.moved(last.priority, last.due_at, job_id, begin.head, walked=not begin.follows)

    def _goes_on(self, call: _Call, plan: OneStatement | LockAndStamp, taken: Taken, look: int) -> bool:
        """Whether the claim makes another pass: jobs that could not start may hide others. Sets `more`."""
        passed = taken.passed or (isinstance(plan, OneStatement) and plan.passed_over and not call.leases)
        hidden = bool(taken.late or taken.blocked or passed) and not taken.shut_seconds
        self.more = call.wanted > 0 and hidden
        if not self._hand_over:
            return self.more
        # A claim ends early after large passes only: small ones are few. One that came back short has seen all jobs:
        # the next pass finds nothing, and ends the claim.
        is_large = len(taken.rows) >= look == max(call.limit, EXPIRED_BATCH)
        is_late = is_large and time.monotonic() - call.begun >= PASSES_SECONDS
        return self.more and not call.leases and not is_late

    def _next_look(self, call: _Call, taken: Taken, look: int) -> int:
        """How many jobs the next pass looks at: where some could not start, one and a half times as many as it wants.

        A claim that hands over looks at the same ones again if they were left alone: they are checked now.
        """
        if self._hand_over and taken.passed:
            return look
        most, wanted = max(call.limit, EXPIRED_BATCH), call.wanted
        if taken.late or taken.passed or not taken.leases:
            return most
        return min(most, wanted + wanted * len(taken.rows) * 3 // (2 * len(taken.leases)))

    def _still_startable(self, call: _Call) -> list[Lease]:
        """Release those that were paused while their claim waited, as for a lock; returns the others."""
        known = rules(self._using) if call.leases else call.known
        if not (shut := [lease for lease in call.leases if known.shuts(lease)]):
            return call.leases
        try:
            for release in _release:
                release(shut)
        except (Error, DatabaseBusy) as error:
            logger.warning("%d jobs that were paused during their claim start: %s", len(shut), error)
            return call.leases
        return [lease for lease in call.leases if lease not in shut]


def refuse_open_transaction(using: str, verb: str) -> None:
    """Raise InsideTransaction when a caller's transaction is open; a test case's own wrapper does not count."""
    if in_open_transaction(using):
        raise InsideTransaction(
            f"{verb}() was called inside transaction.atomic(), or with autocommit off, on {using!r}. It commits by "
            "itself, so that its row locks end before any job runs; nothing was written. Call it outside the block."
        )
