"""The sub-command bench: measure how fast jobs are enqueued, claimed and acked, in a queue of their own.

What it has written is removed.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import Error, connections
from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from jobqueue.base.durations import format_seconds
from jobqueue.base.payload import encode
from jobqueue.cli.arguments import NO_SUCH_ID, count, duration
from jobqueue.cli.output import Result, Subcommand, aligned, complain
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import InsideTransaction, InvalidValue, LockNotAcquired
from jobqueue.locks import lease_lock
from jobqueue.locks.lease import LeaseLock
from jobqueue.log_format import count_of
from jobqueue.models import Job
from jobqueue.producer.enqueueing import add, add_many
from jobqueue.producer.insert import NewJob
from jobqueue.retention.deletion import delete_jobs
from jobqueue.transitions import ack, ack_many
from jobqueue.transitions.claiming.candidates import BENCH_QUEUE, INDEX
from jobqueue.transitions.claiming.claimer import Claimer
from jobqueue.transitions.leases import Lease
from jobqueue.worker.shared.worker_options import default_name

T = TypeVar("T")
SECONDS_MAX = 600.0
_VERBS = ("enqueue", "claim", "ack")
_HEAD = ("verb", "batch", "calls", "jobs", "jobs/s", "p50", "p99")
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


def _ack(leases: list[Lease]) -> None:
    if len(leases) == 1:
        ack(leases[0])
    else:
        ack_many(leases)


def _timed(measured: Measured, jobs: int, call: Callable[[], T]) -> T:
    """Return what `call` returns, and note its time and its jobs."""
    begun = time.perf_counter()
    found = call()
    measured.seconds.append(time.perf_counter() - begun)
    measured.jobs += jobs
    return found


def _seconds(text: str) -> float:
    found = duration(text)
    if found > SECONDS_MAX:
        raise ArgumentTypeError(f"{text[:20]!r} is too long: a benchmark runs at most {format_seconds(SECONDS_MAX)}")
    return found


def _declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--seconds", type=_seconds, default=10.0, metavar="TIME", help="how long it measures (default 10s)")
    add("--jobs", type=count(1_000_000), default=None, metavar="N", help="end each of its two rounds after N jobs")


def _bench(using: str, given: dict[str, Any]) -> Iterator[Result]:
    """Measure; 1 if it was interrupted, with what was measured until then."""
    bench, is_complete = Bench(using, seconds=given["seconds"], jobs=given["jobs"]), True
    shows = given["verbosity"] > 0 and not given["json"] and sys.stderr.isatty()
    if shows:
        sys.stderr.write(f"measuring for {format_seconds(given['seconds'])} ...")
        sys.stderr.flush()
    try:
        with _interrupted_by_sigterm():
            bench.run()
    except KeyboardInterrupt:
        is_complete = False
    finally:
        if shows:
            sys.stderr.write("\r\x1b[K")
    lines = [*aligned([_HEAD, *map(_row, bench.measured)], numbers=range(1, len(_HEAD)))]
    if bench.left_over:
        lines.append(f"{count_of(bench.left_over, 'job')} of an earlier bench that was killed: removed")
    facts = {"complete": is_complete, "left_over": bench.left_over, "measured": list(map(_facts, bench.measured))}
    yield Result(facts, lines, 0 if is_complete else NO_SUCH_ID)
    if not is_complete:
        complain("it was interrupted")
    if not bench.is_clean:
        complain("some of its jobs are left, locked or because of a second interrupt; the next bench removes them")


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do in the block what Ctrl-C does. Only the main thread may set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _facts(one: Measured) -> dict[str, Any]:
    rounded = {f"p{round(share * 100)}_seconds": one.percentile(share) for share in (0.5, 0.99)}
    facts = {"verb": one.verb, "batch": one.batch, "calls": len(one.seconds), "jobs": one.jobs}
    return facts | {"jobs_per_second": round(one.jobs_per_second, 1)} | rounded


def _row(one: Measured) -> tuple[str, ...]:
    times = [one.percentile(share) for share in (0.5, 0.99)]
    shown = ["-" if seconds is None else f"{seconds * 1000:.2f}ms" for seconds in times]
    counts = (str(one.batch), str(len(one.seconds)), str(one.jobs), f"{one.jobs_per_second:.0f}")
    return (one.verb, *counts, *shown)


BENCH = Subcommand(
    "Measure how fast jobs are enqueued, claimed and acked, in a queue of their own that is removed.", _declare, _bench
)
