"""Run all due jobs at a call, or each job as soon as it is committed; add the job of a tick of a schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from unittest.mock import patch

from django.db import connections

from jobqueue.base.validation import check_instant, check_int, check_queue, did_you_mean
from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import AfterCommit, in_open_transaction
from jobqueue.db.clock import Selected, UtcNow, read_now
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.gates.buckets import draw
from jobqueue.gates.limits import limits_at, whole_queue_subject
from jobqueue.gates.rules import forget_rules, rules
from jobqueue.gates.timing import open_due
from jobqueue.gates.waiting import unclaimed
from jobqueue.maintenance import sweeps
from jobqueue.models import Gate, Job
from jobqueue.producer.enqueueing import add
from jobqueue.schedules.deciding import jitter_of
from jobqueue.schedules.declaring import Declared, declare_settings, declared
from jobqueue.schedules.definitions import from_json
from jobqueue.schedules.versions import document_of
from jobqueue.signals import RunOutcome, job_enqueued
from jobqueue.testing.clock import Clock
from jobqueue.testing.runs import WORKER, Drained, JobRun, discover_tasks, run, take_lease
from jobqueue.transitions import claim, reap
from jobqueue.transitions.claiming.candidates import queue_names
from jobqueue.worker.run.batch import batch_of

#: runs after which a drain() without a limit gives up, because a job probably enqueues itself
ENDLESS = 10_000
#: that ticks() returns
TICKS_MAX = 10_000


def drain(
    queue: str | None = None,
    *,
    until: datetime | timedelta | None = None,
    now: datetime | None = None,
    limit: int | None = None,
    using: str | None = None,
) -> Drained:
    """Run all due jobs of `queue` (None: of all queues), and the due jobs that they enqueue, one call after another.

    `now` (an aware datetime) sets the queue's clock at the start. With `until` (an aware datetime, or a timedelta from
    the start) the clock moves on to the next due job, so that delayed and retried jobs run as well. The clock is reset
    at the end. `limit` is the largest number of runs. Works in the transaction of a test case; raises InsideTransaction
    in any other transaction. Expired leases are reaped first. Time limits of jobs are not enforced.
    """
    alias = alias_of(using)
    if queue is not None:
        check_queue(queue)
    if limit is not None:
        check_int(limit, "limit", 1)
    discover_tasks()
    # Ids begin again where a test has been rolled back.
    unclaimed.clear()
    clock = Clock(alias)
    with clock.running():
        if now is not None:
            clock.move_to(now)
        drainer = _Drainer(queue, alias, limit)
        drainer.run_due()
        if until is not None:
            end = _end(clock, until)
            while not drainer.full:
                due = drainer.next_due(end)
                if due is not None:
                    clock.reach(due)
                # If nothing is due later, a job may have become due between the last run and that look.
                if not drainer.run_due() and due is None:
                    break
    return Drained(drainer.runs)


def _end(clock: Clock, until: datetime | timedelta) -> datetime:
    if isinstance(until, timedelta):
        return clock.now() + until
    if not isinstance(until, datetime):
        raise InvalidType(f"until must be an aware datetime or a timedelta, got {type(until).__name__}.")
    return check_instant(until, "until")


class _Drainer:
    def __init__(self, queue: str | None, using: str, limit: int | None) -> None:
        self._queue, self._using = queue, using
        self._limit = limit
        self.runs: list[JobRun] = []

    @property
    def full(self) -> bool:
        """True if the limit is reached. Raises RuntimeError after ENDLESS runs without a limit."""
        if self._limit is None and len(self.runs) >= ENDLESS:
            raise RuntimeError(
                f"drain() has run {ENDLESS} jobs and more are due; the last run was {self.runs[-1]}. "
                "If the job enqueues itself, give drain() a limit, or an earlier until."
            )
        return self._limit is not None and len(self.runs) >= self._limit

    def run_due(self) -> bool:
        """Run jobs until none is due. Returns whether any ran."""
        before, ran = len(self.runs), -1
        while ran < len(self.runs) and not self.full:
            ran = len(self.runs)
            reap(using=self._using)
            # In a test case there is no commit, which would open the gate of the first job of an ordering key.
            sweeps.OrderingSweep().sweep_all(load(), using=self._using)
            # The clock may have been moved beyond the end of a pause, or to the next token of a rate.
            forget_rules()
            open_due(using=self._using)
            for name in [self._queue] if self._queue is not None else queue_names(using=self._using):
                self._run_queue(name)
        return len(self.runs) > before

    def _run_queue(self, name: str) -> None:
        # One call at a time, because the jobs of a call may change which jobs are next.
        while not self.full:
            most = min(batch_of(name), ENDLESS if self._limit is None else self._limit - len(self.runs))
            leases = claim(name, most, worker=WORKER, using=self._using)
            if not leases:
                return
            self.runs += run(leases)

    def next_due(self, end: datetime) -> datetime | None:
        """When the next job becomes due, if not after `end`. Jobs that were parked in this drain do not count."""
        rows = Job.objects.using(self._using).ready().filter(gate=0, run_at__gt=UtcNow(), run_at__lte=end)
        if self._queue is not None:
            rows = rows.filter(queue=self._queue)
        parked = [run.job_id for run in self.runs if run.outcome == RunOutcome.PARKED]
        due = rows.exclude(pk__in=parked).order_by("run_at").values_list("run_at", flat=True).first()
        gates = Gate.objects.using(self._using).filter(opens_at__gt=UtcNow(), opens_at__lte=end)
        opens = gates.order_by("opens_at").values_list("opens_at", flat=True).first()
        return min(filter(None, (due, opens, *self._open_again(end))), default=None)

    def _open_again(self, end: datetime) -> list[datetime]:
        """When pauses of whole queues with due jobs end, or their next tokens come, if not after `end`."""
        return [
            at
            for name in ([self._queue] if self._queue is not None else queue_names(using=self._using))
            if (at := self._opens_at(name)) is not None
            and at <= end
            and Job.objects.using(self._using).ready().filter(queue=name, gate=0, run_at__lte=UtcNow()).exists()
        ]

    def _opens_at(self, queue: str) -> datetime | None:
        known = rules(self._using)
        if known.of_queue(queue).paused:
            return known.of_queue(queue).until
        limits = limits_at(queue, known)
        rows = Gate.objects.using(self._using).filter(pk=whole_queue_subject(queue).number)
        gate = rows.annotate(now=Selected(UtcNow())).first() if limits.per_second and not limits.paused else None
        if gate is None:
            return None
        _, drawn = draw(gate.used_until, gate.now, limits.per_second or 0.0, 0)
        # A token that is there already is of no use to what waits: it waits for something else.
        return drawn.opens_at if drawn.opens_at is not None and drawn.opens_at > gate.now else None


@contextmanager
def run_inline(*, using: str | None = None) -> Iterator[Drained]:
    """Within the block, every due job that is enqueued runs in this thread as soon as it is committed.

    Outside a transaction it runs before enqueue() returns, otherwise when your outermost atomic() block ends; after a
    rollback it does not run. A test case's own transaction does not count. Jobs that a job enqueues run after that job.
    Delayed jobs and retries stay READY; drain() runs them. As in production, enqueue() does not raise what a job
    raises; the end of the block raises the first error. Yields a Drained, to which each run is added.
    """
    alias = alias_of(using)
    discover_tasks()
    inline = _Inline(alias)
    connection = connections[alias]
    job_enqueued.connect(inline.on_enqueued)
    try:
        with patch.object(connection, "savepoint_commit", inline.after(connection.savepoint_commit)):
            yield inline.drained
            inline.release()
    finally:
        job_enqueued.disconnect(inline.on_enqueued)
    inline.drained.raise_error()


class _Inline:
    def __init__(self, using: str) -> None:
        self._using = using
        self._ready: deque[int] = deque()
        self._running = False
        self.drained = Drained([])

    def on_enqueued(self, job_id: int, using: str, **_: object) -> None:
        """Receives job_enqueued, which is sent after the commit: run the job now, or after the one that is running."""
        if using != self._using:
            return
        self._ready.append(job_id)
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                self._run(self._ready.popleft())
        finally:
            self._running = False

    def after(self, commit: Callable[[str], None]) -> Callable[[str], None]:
        """savepoint_commit() of the connection, wrapped: in a test case the end of the outermost one is the commit."""

        def savepoint_commit(sid: str) -> None:
            commit(sid)
            if not in_open_transaction(self._using):
                self.release()

        return savepoint_commit

    def release(self) -> None:
        """Send the signals of what was committed within the test case's transaction; leave the calls of others."""
        if in_open_transaction(self._using):
            return
        connection = connections[self._using]
        calls = [entry for entry in connection.run_on_commit if isinstance(entry[1], AfterCommit)]
        connection.run_on_commit = [
            entry for entry in connection.run_on_commit if not isinstance(entry[1], AfterCommit)
        ]
        for _, call, *_ in calls:
            call()

    def _run(self, job_id: int) -> None:
        if not Job.objects.using(self._using).due().filter(pk=job_id).exists():
            return
        lease = take_lease(job_id, using=self._using)
        if lease is not None:
            self.drained.runs.extend(run([lease]))


def fire(name: str, at: datetime | None = None) -> int:
    """Add the job of one tick of a schedule of the code or the settings, as a worker would; the job's id.

    `at`: the tick, aware (default: now, by the database's clock); it need not be one of the schedule. Neither overlap
    nor missed ticks count. The job is due at once, or later by the schedule's jitter. Raises InvalidValue if no
    schedule has the name, and what enqueue() raises.
    """
    one = _find(name)
    alias = str(getattr(one.task.get_backend(), "database", None) or alias_of(None))
    now = read_now(alias)
    tick = now if at is None else check_instant(at, "at")
    late = jitter_of(name, tick, one.terms.jitter_seconds)
    job = from_json(document_of(one)).job(tick, now + timedelta(seconds=late) if late else None, now)
    return add(job, using=alias)


def ticks(name: str, since: datetime, until: datetime) -> list[datetime]:
    """The ticks of a schedule of the code or the settings after `since`, up to `until`: aware, in UTC, 10,000 at most.

    Raises InvalidValue if no schedule has the name.
    """
    timing = _find(name).terms.timing
    found: list[datetime] = []
    last, tick = check_instant(until, "until"), timing.after(check_instant(since, "since"))
    while tick is not None and tick <= last and len(found) < TICKS_MAX:
        found.append(tick)
        tick = timing.after(tick)
    return found


def _find(name: str) -> Declared:
    discover_tasks()
    declare_settings()
    if name not in declared():
        raise InvalidValue(
            f"no schedule is called {name!r:.200}{did_you_mean(name, declared())}. Nothing was written; schedules are "
            "declared in the tasks.py of an app, or in JOBQUEUE['SCHEDULES']."
        )
    return declared()[name]
