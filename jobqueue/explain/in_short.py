"""Explanations through a slow connection: a few statements find database_slow and the causes that surely stop jobs.

Each look is made only if the Stopwatch has time for it, the most certain cause first: whether the database refuses
writes, what operators have set for the queue, which workers run. What limits, breakers and busy workers hold up would
take many statements more.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connections

from jobqueue.explain.controls import drain_of, pause_of_queue, pause_of_task
from jobqueue.explain.crews import Crews
from jobqueue.explain.explanation import Explanation
from jobqueue.explain.findings import uncounted
from jobqueue.explain.hosts import host_exhausted
from jobqueue.explain.monitors import nobody_reaps
from jobqueue.explain.reading import Place, ReadJob, read_place, unread_place
from jobqueue.explain.refusals import read_only
from jobqueue.explain.row_locks import row_locks
from jobqueue.explain.serving import Serving, no_worker, serving
from jobqueue.explain.slowness import Stopwatch
from jobqueue.explain.states import at_a_gate, expired, held, not_due, running, unknown_here
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE

_OF_WORKERS = ("no_worker", "host_exhausted", "clock_skew")
_OF_LIMITS = ("breaker", "slot", "rate", "key")
_OF_STACKS = ("connection", "outside_service", "hanging")
#: what a job at one of these gates waits for
_OF_GATES = {FLOW_GATE: _OF_LIMITS, KEY_GATE: ("key",), PARENTS_GATE: ("parents",)}
#: what only looks at the jobs of a queue could tell; and at those of all queues, with what is set there
_OF_JOBS = (
    "held", "expired", "parents", "unknown_task", "not_due", *_OF_LIMITS, *_OF_STACKS, "workers_busy", "running",
    "ended",
)  # fmt: skip
_OF_QUEUES = ("paused", "no_worker", "monitor_dead", *(code for code in _OF_JOBS if code != "expired"))


def job_in_short(job: ReadJob, using: str, watch: Stopwatch) -> list[Explanation]:
    """explain_job() of a job that is READY or PROCESSING. At most three statements, or four if writes are refused."""
    refusal = _refusal(using, watch)
    if job.status == Job.Status.PROCESSING:
        watch.leave_out(*_OF_STACKS)
        return [*refusal, *nobody_reaps(job), running(job), *watch.told()]
    place = _place(job.queue, job.now, using, watch)
    stops = [*refusal, *held(job), *expired(job), *pause_of_queue(place), *_own_reasons(job, place)]
    watch.leave_out(*_OF_GATES.get(job.gate, ()))
    if job.gate == 0 and job.run_at <= job.now:
        watch.leave_out(*_OF_LIMITS, *([] if stops else [*_OF_STACKS, "workers_busy"]))
    found = _with_workers(stops, place, watch)
    return found if any(one.code == "unknown_task" for one in found) else found + unknown_here(job)


def queue_in_short(queue: str, now: datetime, using: str, watch: Stopwatch) -> list[Explanation]:
    """explain_queue() without a look at the jobs. At most three statements, or four if writes are refused."""
    refusal = _refusal(using, watch)
    place = _place(queue, now, using, watch)
    watch.leave_out(*_OF_JOBS)
    return _with_workers([*refusal, *pause_of_queue(place)], place, watch)


def backlog_in_short(using: str, watch: Stopwatch) -> list[Explanation]:
    """explain_backlog() without a look at jobs and queues. At most six statements, or seven if writes are refused."""
    first = _refusal(using, watch)
    others, skew = list[Explanation](), list[Explanation]()
    if watch.has_time(*_OF_WORKERS):
        crews = Crews(using)
        watch.note_commits(crews.commits())
        first += crews.nobody()
        others, skew = crews.short(), crews.skew()
    # Three statements, and in a transaction those of a savepoint.
    needed = 5 if connections[using].in_atomic_block else 3
    locks = row_locks(using) if watch.has_time("row_lock", statements=needed) else []
    watch.leave_out(*_OF_QUEUES)
    return [*map(uncounted, [*first, *watch.told(), *locks, *others]), *skew]


def _own_reasons(job: ReadJob, place: Place) -> list[Explanation]:
    """What the row of a READY job tells that it waits for. No statement."""
    found = [*pause_of_task(place, job.task), *not_due(job)]
    return found or ([at_a_gate(job, looked=False)] if job.gate not in (0, HELD_GATE) else [])


def _refusal(using: str, watch: Stopwatch) -> list[Explanation]:
    return read_only(using) if watch.has_time("read_only") else []


def _place(queue: str, now: datetime, using: str, watch: Stopwatch) -> Place:
    if watch.has_time("paused", "draining"):
        return read_place(queue, now, using)
    return unread_place(queue, now, using)


def _with_workers(stops: list[Explanation], place: Place, watch: Stopwatch) -> list[Explanation]:
    """`stops`, what stops jobs for certain, with database_slow and what the rows of workers tell. One statement."""
    workers: Serving | None = serving(place) if watch.has_time(*_OF_WORKERS) else None
    if workers is None:
        return [*stops, *watch.told(), *drain_of(place)]
    watch.note_commits(workers.commits)
    short, nobody = host_exhausted(workers.short), no_worker(place, workers)
    slow = [*short, *watch.told()] if workers.all_short else [*watch.told(), *short]
    return [*stops, *nobody, *slow, *drain_of(place), *workers.skew]
