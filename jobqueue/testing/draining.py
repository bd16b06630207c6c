"""Run all due jobs in this thread, as a worker would."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.exceptions import InvalidType
from jobqueue.gates.ahead import opened
from jobqueue.gates.buckets import draw
from jobqueue.gates.rules import forget_rules, rules
from jobqueue.gates.subjects import whole_queue_subject
from jobqueue.gates.timing import open_due
from jobqueue.gates.whole_queues import limits_of_queue
from jobqueue.maintenance import ordering_sweep
from jobqueue.models import Gate, Job
from jobqueue.signals import RunOutcome
from jobqueue.testing.clock import Clock
from jobqueue.testing.leases import WORKER
from jobqueue.testing.runs import JobRun, discover_tasks, run_all
from jobqueue.transitions import claim, reap
from jobqueue.transitions.claiming.candidates import queue_names
from jobqueue.validation import check_instant, check_int, check_queue
from jobqueue.worker.run.batch import batch_of

#: runs after which a drain() without a limit gives up, because a job probably enqueues itself
ENDLESS = 10_000


@dataclass(frozen=True, slots=True)
class Drained:
    """The runs of a drain() or of a run_inline() block, in order."""

    runs: list[JobRun]

    def __str__(self) -> str:
        return "\n".join(str(run) for run in self.runs) or "nothing ran"

    @property
    def ran(self) -> int:
        """The number of runs; a job that was retried counts once for each run."""
        return len(self.runs)

    @property
    def ok(self) -> int:
        """The number of runs that succeeded."""
        return self.count(RunOutcome.OK)

    @property
    def failed(self) -> int:
        """The number of runs that raised, whether the job will be retried or not."""
        return self.count(RunOutcome.RETRY) + self.count(RunOutcome.DEAD)

    @property
    def dead(self) -> int:
        """The number of runs after which the job was FAILED."""
        return self.count(RunOutcome.DEAD)

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of the failed runs."""
        return [
            run.error
            for run in self.runs
            if run.error is not None and run.outcome in (RunOutcome.RETRY, RunOutcome.DEAD)
        ]

    def count(self, outcome: str) -> int:
        """The number of runs with this outcome (see JobRun)."""
        return sum(run.outcome == outcome for run in self.runs)

    def raise_error(self) -> Drained:
        """Raise the first exception of a failed run, with its own traceback; return this object if there is none."""
        if self.errors:
            raise self.errors[0]
        return self


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
    opened.clear()
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
        """Whether the limit is reached. Raises RuntimeError after ENDLESS runs without a limit."""
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
            ordering_sweep.OrderingSweep().sweep_all(load(), using=self._using)
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
            self.runs += run_all(leases)

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
        limits = limits_of_queue(queue, known)
        rows = Gate.objects.using(self._using).filter(pk=whole_queue_subject(queue).number)
        gate = rows.annotate(now=Selected(UtcNow())).first() if limits.per_second and not limits.paused else None
        if gate is None:
            return None
        _, drawn = draw(gate.used_until, gate.now, limits.per_second or 0.0, 0)
        # A token that is there already is of no use to what waits: it waits for something else.
        return drawn.opens_at if drawn.opens_at is not None and drawn.opens_at > gate.now else None
