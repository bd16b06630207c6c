"""Run what is due, in this thread, as a worker would."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import InvalidType
from jobqueue.maintenance import ordering_sweep
from jobqueue.models import Job
from jobqueue.testing.clock import Clock
from jobqueue.testing.leases import WORKER
from jobqueue.testing.runs import JobRun, discover_tasks, run_all
from jobqueue.transitions import claim, reap
from jobqueue.transitions.claiming.candidates import queue_names
from jobqueue.validation import check_instant, check_int, check_queue
from jobqueue.worker.run.batch import batch_of

#: a drain without a limit gives up here: some job enqueues itself
ENDLESS = 10_000


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain() or a run_inline() block ran, in order."""

    runs: list[JobRun]

    def __str__(self) -> str:
        return "\n".join(str(run) for run in self.runs) or "nothing ran"

    @property
    def ran(self) -> int:
        """How many runs there were; a job that was retried counts each time."""
        return len(self.runs)

    @property
    def ok(self) -> int:
        """Runs that ended well."""
        return self.count("ok")

    @property
    def failed(self) -> int:
        """Runs that raised; whether the job was retried or not."""
        return self.count("retry") + self.count("dead")

    @property
    def dead(self) -> int:
        """Jobs that failed for the last time."""
        return self.count("dead")

    @property
    def errors(self) -> list[BaseException]:
        """What the failed runs raised."""
        return [run.error for run in self.runs if run.error is not None and run.outcome in ("retry", "dead")]

    def count(self, outcome: str) -> int:
        """Runs with one of the outcomes of JobRun."""
        return sum(run.outcome == outcome for run in self.runs)

    def raise_error(self) -> Drained:
        """Raise the first error that a job raised, with its own traceback; this object if there is none."""
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
    """Run all due jobs of `queue` (None: of all), also those that they enqueue, one call at a time in this thread.

    `now` (an aware datetime) is what the queue's clock shows at the start. `until` (an aware datetime, or a timedelta
    from the start) lets that clock go on from job to job, so that delayed and retried jobs run as well. Afterwards the
    clock is back. `limit` stops after so many runs. Works in the transaction of a test case, and refuses to run in one
    of your own: InsideTransaction. Lapsed leases are reaped first. Time limits of jobs are not enforced.
    """
    alias = alias_of(using)
    if queue is not None:
        check_queue(queue)
    if limit is not None:
        check_int(limit, "limit", 1)
    discover_tasks()
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
                # Without one: the last may have become due since the last run, before it was looked for.
                if not drainer.run_due() and due is None:
                    break
    return Drained(drainer.runs)


def _end(clock: Clock, until: datetime | timedelta) -> datetime:
    if isinstance(until, timedelta):
        return clock.now() + until
    if not isinstance(until, datetime):
        raise InvalidType(f"until is an aware datetime or a timedelta, got {type(until).__name__}.")
    return check_instant(until, "until")


class _Drainer:
    def __init__(self, queue: str | None, using: str, limit: int | None) -> None:
        self._queue, self._using = queue, using
        self._limit = limit
        self.runs: list[JobRun] = []

    @property
    def full(self) -> bool:
        """Whether the limit is reached. Raises RuntimeError where there is none and no end either."""
        if self._limit is None and len(self.runs) >= ENDLESS:
            raise RuntimeError(
                f"drain() has run {ENDLESS} jobs and more are due, the last one {self.runs[-1]}. "
                "Does it enqueue itself? Give drain() a limit, or a nearer until."
            )
        return self._limit is not None and len(self.runs) >= self._limit

    def run_due(self) -> bool:
        """Run until nothing is due any more; whether there was something."""
        before, ran = len(self.runs), -1
        while ran < len(self.runs) and not self.full:
            ran = len(self.runs)
            reap(using=self._using)
            # In a test case no commit comes that would open the first job of an ordering key.
            ordering_sweep.run_once(load(), using=self._using)
            for name in [self._queue] if self._queue is not None else queue_names(using=self._using):
                self._run_queue(name)
        return len(self.runs) > before

    def _run_queue(self, name: str) -> None:
        # One call at a time: what its jobs change decides which ones are next.
        while not self.full and (leases := claim(name, self._most(name), worker=WORKER, using=self._using)):
            self.runs += run_all(leases)

    def _most(self, name: str) -> int:
        return min(batch_of(name), ENDLESS if self._limit is None else self._limit - len(self.runs))

    def next_due(self, end: datetime) -> datetime | None:
        """When the next job becomes due, up to `end`. One that was parked is not waited for again."""
        rows = Job.objects.using(self._using).ready().filter(gate=0, run_at__gt=UtcNow(), run_at__lte=end)
        if self._queue is not None:
            rows = rows.filter(queue=self._queue)
        parked = [run.job_id for run in self.runs if run.outcome == "parked"]
        due: datetime | None = rows.exclude(pk__in=parked).order_by("run_at").values_list("run_at", flat=True).first()
        return due
