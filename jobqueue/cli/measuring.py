"""Measures enqueue, claim and ack in a queue of their own, and removes what it has written."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import Error, connections
from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import InsideTransaction, InvalidValue, LockNotAcquired
from jobqueue.locks import lease_lock
from jobqueue.locks.lease import LeaseLock
from jobqueue.models import Job
from jobqueue.payload import encode
from jobqueue.producer.enqueueing import add, add_many
from jobqueue.producer.insert import NewJob
from jobqueue.retention.deletion import delete_jobs
from jobqueue.transitions import ack, ack_many
from jobqueue.transitions.claiming.candidates import BENCH_QUEUE, INDEX
from jobqueue.transitions.claiming.claimer import Claimer
from jobqueue.transitions.leases import Lease
from jobqueue.worker.shared.worker_options import default_name

T = TypeVar("T")
#: one job a call, as a web request enqueues, and as many as a worker takes and settles at once
BATCHES = (1, 100)
#: jobs that have ended are removed in portions of this size, so that few are left if the process is killed
PORTION = 1000
#: another bench may begin so long after this process was killed; the lock is renewed thrice as often
LOCK_SECONDS = 30.0


@dataclass(slots=True)
class Measured:
    """The calls of one verb with up to `batch` jobs each."""

    verb: str
    batch: int
    jobs: int = 0
    seconds: list[float] = field(default_factory=list)  # of each call

    @property
    def jobs_per_second(self) -> float:
        """Jobs per second of the time that the calls took; 0 if there were none."""
        return self.jobs / total if (total := sum(self.seconds)) else 0.0

    def percentile(self, share: float) -> float | None:
        """The seconds within which this share of its calls returned; None if there were none."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class Bench:
    """One run. `measured` has what it has found so far, also after an error or an interruption."""

    def __init__(self, using: str, *, seconds: float, jobs: int | None) -> None:
        self._using, self._round_seconds = using, seconds / len(BATCHES)
        self._jobs_max = math.inf if jobs is None else jobs
        self._claimer = Claimer(f"jobs bench {default_name()}"[:128], using)
        self._payload = Encoded(encode({"args": [1], "kwargs": {}}, max_bytes=1000, what="payload"))
        self._ended: list[int] = []
        self._renewed = 0.0
        self.measured: list[Measured] = []
        #: jobs of an earlier bench that was killed, which were removed
        self.left_over = 0
        #: whether nothing is left of what this one has written
        self.is_clean = True

    def run(self) -> None:
        """Measure until the time is over or the jobs are done, with each size of BATCHES in turn.

        Everything that it has written is removed, also after an error or an interruption. What cannot be removed, as
        where the database does not answer any more, is left to the next bench, and `is_clean` is false. Raises
        InsideTransaction, and InvalidValue if another bench runs; nothing is written then.
        """
        if in_open_transaction(self._using):
            raise InsideTransaction(
                f"jobs bench was started inside transaction.atomic() on {self._using!r}, where it could not commit. "
                "Nothing was written; start it outside the block."
            )
        try:
            with lease_lock(BENCH_QUEUE, LOCK_SECONDS, 0, using=self._using) as lock:
                self.left_over, self.is_clean = self._remove_all(), False
                try:
                    for batch in BATCHES:
                        self._round(batch, lock)
                except BaseException:
                    # An interrupted statement may have left the session in any state.
                    with suppress(Error):
                        connections[self._using].close()
                    raise
                finally:
                    self._remove_all()
                    self.is_clean = not self._rows().exists()
        except LockNotAcquired:
            raise InvalidValue(
                f"another bench runs on {self._using!r}, or was killed within the last {LOCK_SECONDS:g} s: two would "
                "measure each other. Nothing was written; try again later."
            ) from None

    def _round(self, batch: int, lock: LeaseLock) -> None:
        # The first calls build the statements.
        self._cycle(batch, [Measured(verb, batch) for verb in _VERBS])
        own = [Measured(verb, batch) for verb in _VERBS]
        self.measured += own
        end = time.monotonic() + self._round_seconds
        while time.monotonic() < end and own[0].jobs < self._jobs_max:
            self._cycle(int(min(batch, self._jobs_max - own[0].jobs)), own)
            if len(self._ended) >= PORTION:
                self._remove(Job.objects.using(self._using).filter(pk__in=self._ended[:PORTION]))
                del self._ended[:PORTION]
            if time.monotonic() - self._renewed > LOCK_SECONDS / 3:
                lock.renew()
                self._renewed = time.monotonic()

    def _cycle(self, size: int, measured: Sequence[Measured]) -> None:
        """Enqueue, claim and ack `size` jobs, each verb in one call."""
        enqueued, claimed, acked = measured
        job = NewJob(queue=BENCH_QUEUE, payload=self._payload)
        if size == 1:
            _timed(enqueued, 1, lambda: add(job, using=self._using))
        else:
            _timed(enqueued, size, lambda: add_many([job] * size, using=self._using))
        leases = _timed(claimed, 0, lambda: self._claimer.claim(BENCH_QUEUE, size, lease_seconds=60.0))
        claimed.jobs += len(leases)
        if leases:
            _timed(acked, len(leases), lambda: _ack(leases))
        self._ended += [lease.job_id for lease in leases]

    def _remove_all(self) -> int:
        """Remove the jobs of the queue; how many. Those that somebody has locked are left to the next bench."""
        removed = 0
        while found := self._remove(self._rows()):
            removed += found
        return removed

    def _rows(self) -> QuerySet[Job]:
        # In the order of the index, or PostgreSQL may read the whole table.
        rows = Job.objects.using(self._using).filter(queue=BENCH_QUEUE)
        return vendor(self._using).force_index(rows.order_by("status", "gate", "priority", "run_at", "id"), INDEX)

    def _remove(self, rows: QuerySet[Job]) -> int:
        """Remove up to PORTION jobs of `rows` with their attempts, in any state; how many."""
        found = rows.values_list("pk", "status", Coalesce("finished_at", "updated_at"))[:PORTION]
        by_status: dict[int, dict[int, Any]] = {}
        for job_id, status, at in found:
            by_status.setdefault(status, {})[job_id] = at
        return sum(len(delete_jobs(jobs, status, using=self._using)) for status, jobs in by_status.items())


_VERBS = ("enqueue", "claim", "ack")


def _ack(leases: list[Lease]) -> None:
    if len(leases) == 1:
        ack(leases[0])
    else:
        ack_many(leases)


def _timed(measured: Measured, jobs: int, call: Callable[[], T]) -> T:
    """What `call` returns; its time and its jobs are noted when it has returned."""
    begun = time.perf_counter()
    found = call()
    measured.seconds.append(time.perf_counter() - begun)
    measured.jobs += jobs
    return found
