"""The figures of the whole queue for Prometheus, read from the database; those of one worker are its probe's.

The view says who may read them, and how often the database is asked. Imported by a project's urls.py. Runs in web
processes; prometheus-client, an extra, is imported with the first answer.
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from django.contrib.auth.decorators import login_not_required
from django.db import Error, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from jobqueue.conf import load
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import NotMigrated, StatementTimeout
from jobqueue.lockstats.report import RedoneTransactions, ServerCounts, read_redone, read_server_counts
from jobqueue.stats import QueueStats, snapshot
from jobqueue.stats.ends import BOUNDS_SECONDS, Ends, Kind
from jobqueue.stats.history import totals
from jobqueue.stats.live import COUNTS

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["view"]

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
    """The families of the server's own counts; what it does not tell has no samples."""
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

    Raises StatementTimeout after stats.live.READ_SECONDS and READ_SECONDS more, and database errors.
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


logger = logging.getLogger("jobqueue")

#: how long a process gives the same answer again
CACHE_SECONDS = 5.0
PERMISSION = "jobqueue.view_jobstat"
_REFUSED = (
    "These metrics are for a request with the header 'Authorization: Bearer TOKEN', where TOKEN is "
    'JOBQUEUE["METRICS_TOKEN"], and for staff with the permission jobqueue.view_jobstat.\n'
)
_NOT_INSTALLED = "prometheus-client is not installed, so there are no metrics. Run: pip install prometheus-client\n"
_NO_DATABASE = "The database did not answer, so there are no metrics now. The next scrape tries again.\n"


class Answer(NamedTuple):
    """The answer to a scrape."""

    status: int
    text: str


class Cache:
    """The newest answer of this process. Requests that come while it is made wait for it, and do not ask again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._made_at = 0.0

    def get(self, make: Callable[[], Answer]) -> Answer:
        """The answer, from make() if it is older than CACHE_SECONDS."""
        with self._lock:
            if self._answer is None or time.monotonic() - self._made_at > CACHE_SECONDS:
                self._answer = make()
                # After the reads: slow ones must not follow each other without a pause.
                self._made_at = time.monotonic()
            return self._answer

    def clear(self) -> None:
        """Drop the cached answer."""
        with self._lock:
            self._answer = None


cache = Cache()


@require_safe
@login_not_required
@transaction.non_atomic_requests
def view(request: HttpRequest) -> HttpResponse:
    """Answer a scrape of Prometheus with the figures of the whole queue, up to CACHE_SECONDS old.

    For requests with METRICS_TOKEN, and for staff with the permission view_jobstat; others get 403. 501 without
    prometheus-client; 503 while the database does not answer, or is so slow that the reads were stopped. The text of
    each says what to do.
    """
    try:
        allowed = _has_token(request) or _may_view(request)
    except Error as error:
        # The session of a person is in a database too.
        return _response(_failed(error))
    return _response(cache.get(_make) if allowed else Answer(403, _REFUSED))


def _has_token(request: HttpRequest) -> bool:
    token = load().metrics_token
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if token is None or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())


def _may_view(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.is_staff and user.has_perm(PERMISSION)


def _make() -> Answer:
    try:
        return Answer(200, prometheus_text(read_figures(using=alias_of(None))))
    except ImportError:
        return Answer(501, _NOT_INSTALLED)
    except (StatementTimeout, NotMigrated) as error:
        logger.warning("metrics: %s", error)
        return Answer(503, f"{error}\n")
    except Error as error:
        return _failed(error)


def _failed(error: Error) -> Answer:
    # The words of a driver may name hosts and accounts: they are for the log.
    logger.warning("metrics: the database did not answer: %s", error)
    return Answer(503, _NO_DATABASE)


def _response(answer: Answer) -> HttpResponse:
    # The format of generate_latest(): version 0.0.4 of Prometheus' text.
    kind = "text/plain; version=0.0.4; charset=utf-8" if answer.status == 200 else "text/plain; charset=utf-8"
    response = HttpResponse(answer.text, status=answer.status, content_type=kind)
    # A proxy must not give it to somebody who may not read it.
    response["Cache-Control"] = "private, no-store"
    return response
