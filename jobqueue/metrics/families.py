"""Reads the figures and puts them into the metrics of prometheus-client, an extra that is imported inside functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from jobqueue.lockstats.report import RedoneTransactions, ServerCounts
from jobqueue.stats import QueueStats, snapshot
from jobqueue.stats.ends import BOUNDS_SECONDS, Ends, Kind
from jobqueue.stats.history import totals
from jobqueue.stats.live import COUNTS

if TYPE_CHECKING:
    from prometheus_client import Metric
from collections.abc import Mapping
from dataclasses import dataclass

from jobqueue.db.alias import explain_missing_table
from jobqueue.db.time_limit import time_limit
from jobqueue.lockstats.report import read_redone, read_server_counts

#: pairs of queue and task with figures of ended jobs, in their order; each has 47 lines
KINDS_MAX = 1000

#: field of Ends -> what its counter counts
_ENDS = {
    "done": "Jobs that ended DONE",
    "retried": "Attempts that failed or were lost, whose jobs go on",
    "dead": "Jobs that ended FAILED",
    "canceled": "Jobs that ended CANCELED",
    "lost": "Attempts whose process died or whose lease ran out; they are also in jobs_retried or jobs_dead",
}
#: how long the reads may take beside those of snapshot()
READ_SECONDS = 5.0
#: how far back redone transactions are counted
REDONE_SECONDS = 3600.0


def prometheus_text(figures: Figures) -> str:
    """The answer to a scrape. Raises ImportError without prometheus-client."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Queue(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(figures)

    # A registry of its own: the figures of the project's web process are not the queue's.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Queue())
    return generate_latest(registry).decode()


def families(figures: Figures) -> Iterator[Metric]:
    """All metrics, in the order of the reference."""
    yield from _live(figures.queues)
    ended = figures.totals or {}
    kinds = sorted(ended)[:KINDS_MAX]
    yield _complete(figures.totals is not None and len(ended) == len(kinds))
    yield from _ended([(kind, ended[kind]) for kind in kinds])
    yield from _redone(figures.redone)
    yield from _server(figures.server)


def _live(queues: Sequence[QueueStats]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    jobs = GaugeMetricFamily("jobqueue_jobs", "Jobs of a queue by state, 10,000 at most", None, ("queue", "state"))
    oldest = "Seconds since the oldest ready job fell due, 0 if none is ready"
    ages = GaugeMetricFamily("jobqueue_oldest_age_seconds", oldest, None, ("queue",))
    more = "1 if the queue has more jobs of a state than jobqueue_jobs says"
    capped = GaugeMetricFamily("jobqueue_jobs_capped", more, None, ("queue",))
    for queue in queues:
        for state in COUNTS:
            jobs.add_metric((queue.queue, state), getattr(queue, state))
        ages.add_metric((queue.queue,), queue.oldest_age_seconds)
        capped.add_metric((queue.queue,), float(queue.capped))
    yield from (jobs, ages, capped)


def _complete(complete: bool) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    words = "1 if every queue and task has its figures of ended jobs here, 0 if there are too many"
    return GaugeMetricFamily("jobqueue_ended_complete", words, float(complete))


def _ended(ended: Sequence[tuple[Kind, Ends]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    labels = ("queue", "task")
    for field, words in _ENDS.items():
        counter = CounterMetricFamily(f"jobqueue_jobs_{field}", words, None, labels)
        for kind, counts in ended:
            counter.add_metric(kind, getattr(counts, field))
        yield counter
    waited, ran = "From due to claimed, of runs that ended", "How long runs took that ended"
    waits = HistogramMetricFamily("jobqueue_job_wait_seconds", waited, labels=labels)
    runs = HistogramMetricFamily("jobqueue_job_run_seconds", ran, labels=labels)
    for kind, counts in ended:
        waits.add_metric(kind, _buckets(counts.wait_times), counts.wait_us / 1e6)
        runs.add_metric(kind, _buckets(counts.run_times), counts.run_us / 1e6)
    yield from (waits, runs)


def _buckets(counts: Sequence[int] | None) -> list[tuple[str, float]]:
    """Each upper bound with the number of times that are not longer, as Prometheus wants it."""
    bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(counts or ())), strict=True))


def _redone(redone: Sequence[RedoneTransactions]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    name, labels = "jobqueue_transactions", ("verb", "error")
    again = "Transactions of all processes that an error ended and that ran again, in the last hour"
    for_good = "Transactions of all processes that an error ended for good, in the last hour"
    ran_again = GaugeMetricFamily(f"{name}_redone_per_hour", again, None, labels)
    given_up = GaugeMetricFamily(f"{name}_given_up_per_hour", for_good, None, labels)
    for line in redone:
        ran_again.add_metric((line.verb, line.error), line.redone)
        given_up.add_metric((line.verb, line.error), line.given_up)
    yield from (ran_again, given_up)


def _server(server: ServerCounts) -> Iterator[Metric]:
    """Without samples for what the server does not tell."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    waiting = "Sessions of the database server that wait for a lock now, 100 at most"
    waits = GaugeMetricFamily("jobqueue_lock_waits", waiting, server.waits)
    longest = GaugeMetricFamily(
        "jobqueue_lock_wait_longest_seconds", "How long the longest of them has waited", server.longest_wait_seconds
    )
    ended = "Deadlocks that the database server has ended since it began to count"
    deadlocks = CounterMetricFamily("jobqueue_server_deadlocks", ended, server.deadlocks)
    yield from (waits, longest, deadlocks)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one moment."""

    queues: Sequence[QueueStats]
    totals: Mapping[Kind, Ends] | None  # None: there are too many to read
    redone: Sequence[RedoneTransactions]
    server: ServerCounts


def read_figures(*, using: str) -> Figures:
    """The figures now, by reads whose cost does not grow with the table of jobs.

    Raises StatementTimeout after stats.queues.READ_SECONDS and READ_SECONDS more, and database errors.
    """
    queues = snapshot(using=using)
    with explain_missing_table(using), time_limit(READ_SECONDS, using=using) as limit:
        ended = totals(using)
        limit.check()
        redone = read_redone(seconds=REDONE_SECONDS, using=using)
        limit.check()
        server = read_server_counts(using=using)
        # The server may have stopped a read that reports errors in its answer instead of raising them.
        limit.check()
    return Figures(queues, ended, redone, server)
