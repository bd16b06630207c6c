"""no_worker, workers_busy and clock_skew: whether a worker serves a queue, has a free thread, and reads its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.db.clock import SKEW_SECONDS
from jobqueue.db.expressions import Slot, Unestimated
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.explain.explanation import Explanation, span
from jobqueue.explain.hosts import Short, host_exhausted
from jobqueue.explain.reading import Place
from jobqueue.explain.row_locks import forgotten, row_locks
from jobqueue.explain.slowness import SlowCommit
from jobqueue.explain.waits import waits_of_workers
from jobqueue.explain.workers import RunningWorker, crash_loop, read_workers, slow_commits
from jobqueue.maintenance.worker_rows import was_cut
from jobqueue.models import Job
from jobqueue.payload import JSON
from jobqueue.worker.shared.queue_choice import Selection, parse

#: choices and workers that the evidence names
SHOWN = 10
#: leases of each that are counted
LEASES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Serving:
    """The processes of workers that run: those that serve a queue with their threads, and what the others serve."""

    threads: dict[str, int]
    others: list[str]
    short: list[Short]  # what those that serve it are short of
    told: list[str]  # of those that serve it: who has told its stacks a moment ago
    skew: list[Explanation]  # clock_skew, of any of them
    commits: list[SlowCommit]  # of any of them

    @property
    def all_short(self) -> bool:
        """Whether each one that serves it is short of something."""
        return bool(self.short) and len({one.worker for one in self.short}) == len(self.threads)


def serving(place: Place) -> Serving:
    """Who serves the queue of `place`. One statement, which reads the rows of the workers that run."""
    return serve(place.queue, read_workers(place.using))


def serve(queue: str, workers: Sequence[RunningWorker]) -> Serving:
    """Which of `workers` serve `queue`."""
    threads: dict[str, int] = {}
    others: list[str] = []
    short: list[Short] = []
    for worker in workers:
        if _selection(worker.queues).serves(queue):
            threads[worker.name] = worker.threads
            short += worker.short
        else:
            others.append(worker.queues)
    told = [worker.name for worker in workers if worker.told and worker.name in threads]
    return Serving(threads, others, short, told, clock_skew(workers), slow_commits(workers))


def no_worker(place: Place, found: Serving) -> list[Explanation]:
    """no_worker, if none serves the queue."""
    if found.threads:
        return []
    if not found.others and (crashed := crash_loop(place.using)):
        return crashed
    queues = sorted(set(found.others))[:SHOWN]
    evidence: dict[str, JSON] = {"queue": place.queue, "living": len(found.others), "serve": list(queues)}
    facts = {"queue": place.queue, "queues": "; ".join(queues)}
    if found.others:
        text = gettext("No worker that runs serves queue %(queue)s. Those that run serve: %(queues)s") % facts
        step = (
            gettext("Start a worker for it, or add it to --queues of one that runs: runworker --queues %(queue)s")
            % facts
        )
    else:
        text = gettext("No worker is running, so no job of queue %(queue)s starts.") % facts
        step = gettext("Start a worker: python manage.py runworker")
    return [Explanation("no_worker", text, evidence, step)]


def waits_for_worker(place: Place, found: Serving) -> list[Explanation]:
    """For a due job that nothing else holds back: workers_busy and host_exhausted, which is first if all are short."""
    busy, short = next_free_worker(place, found), host_exhausted(found.short)
    return short + busy if found.all_short else busy + short


def next_free_worker(place: Place, found: Serving) -> list[Explanation]:
    """workers_busy: a due job that nothing holds back starts when a worker takes it; and what busy workers wait for.

    One statement for each hundred processes; four or five more if workers have told their stacks a moment ago.
    """
    busy = _busy(place, found)
    waits = waits_of_workers(found.told, place.using) if found.told else []
    free = not busy.evidence["full"]
    locks = row_locks(place.using) or (forgotten(place.using) if free else [])
    if locks:
        waits, busy = [*locks, *waits], beside_locks(busy)
        if free:
            return [*waits, busy]
    # With free threads, only what keeps the workers themselves from claiming is in the way of this job.
    first = [one for one in waits if not free or one.evidence.get("kind") == "refused"]
    return [*first, busy, *(one for one in waits if one not in first)]


def _busy(place: Place, found: Serving) -> Explanation:
    names = sorted(found.threads)
    held = leases_of(names, place.using)
    leases = held.total()
    threads = sum(found.threads.values())
    facts = {"queue": place.queue, "held": leases, "threads": threads}
    evidence: dict[str, JSON] = {"queue": place.queue, "leases": leases, "threads": threads}
    evidence |= {"workers": len(names), "full": leases >= threads, "tasks": most_run(held)}
    if leases >= threads:
        text = gettext(
            "The workers of queue %(queue)s are busy: they hold %(held)d jobs, with %(threads)d threads. They run: "
            "%(tasks)s."
        )
        facts["tasks"] = tasks_in_words(held)
        step = gettext("A job starts when another one ends. Start more workers if jobs wait for too long.")
    else:
        text = gettext(
            "Nothing holds back what is due in queue %(queue)s: the next free worker starts it. Its workers hold "
            "%(held)d jobs, with %(threads)d threads."
        )
        step = gettext("Wait a few seconds. If nothing starts then, read the log of the workers.")
    return Explanation("workers_busy", text % facts, evidence, step)


def beside_locks(busy: Explanation) -> Explanation:
    """Replace the advice of workers_busy beside a row_lock: more workers would not help."""
    step = gettext("End the wait of row_lock first: more workers would wait, too, or pass over the same rows.")
    return replace(busy, next_step=step)


def leases_of(workers: Sequence[str], using: str) -> Counter[str]:
    """The jobs that these workers hold, of each up to LEASES_MAX, by task. One statement for each hundred of them.

    Jobs without a task are counted under the handler of their queue: "@handler mail".
    """
    rows = _leases(using).seek_each([{"worker": name} for name in workers])
    return Counter(task or f"@handler {queue}" for task, queue in rows)


def most_run(held: Counter[str]) -> dict[str, JSON]:
    """The tasks of most of these jobs, with the number of each."""
    return dict(held.most_common(SHOWN))


def tasks_in_words(held: Counter[str]) -> str:
    """The same as text."""
    shown = [f"{task} ({number})" for task, number in held.most_common(3)]
    return ", ".join(shown + ["..."] * (len(held) > len(shown))) or "-"


@cache
def _leases(using: str) -> Prepared:
    # By equality: for a list of names MySQL may read the whole index.
    rows = Job.objects.using(using).filter(
        locked_by=Slot("worker", NameField()), status=Unestimated(Job.Status.PROCESSING)
    )
    return prepare_rows(vendor(using).force_index(rows, "ix_worker").values_list("task", "queue")[:LEASES_MAX])


@lru_cache(maxsize=256)
def _selection(queues: str) -> Selection:
    """What a worker's row says that it serves. Text that was too long for the column counts as all queues."""
    try:
        return parse([] if was_cut(queues) else [queues])
    except (InvalidValue, InvalidType):
        return parse([])


def clock_skew(workers: Sequence[RunningWorker]) -> list[Explanation]:
    """clock_skew, if the clock of one of their hosts was wrong at its last heartbeat. No statement.

    Leases and due times go by the database's clock, so a wrong clock is never the first reason.
    """
    wrong = [(worker.clock_ahead_seconds or 0.0, worker) for worker in workers]
    wrong = [(ahead, worker) for ahead, worker in wrong if abs(ahead) > SKEW_SECONDS]
    if not wrong:
        return []
    wrong.sort(key=lambda one: (-abs(one[0]), one[1].name))
    hosts = dict.fromkeys(worker.host for _, worker in wrong)
    ahead, worst = wrong[0]
    if ahead > 0:
        text = gettext("The clock of host %(host)s is %(time)s ahead of that of the database. Hosts like it: %(n)d.")
    else:
        text = gettext("The clock of host %(host)s is %(time)s behind that of the database. Hosts like it: %(n)d.")
    step = gettext(
        "Run NTP on that host. Leases and due times go by the clock of the database; but a time that a job computes on "
        "that host, such as the run_at of a new job, is wrong by so much, and so are times in its logs."
    )
    evidence: dict[str, JSON] = {
        "host": worst.host,
        "host_ahead_seconds": ahead,
        "limit_seconds": SKEW_SECONDS,
        "workers": [
            {"name": worker.name, "host": worker.host, "ahead_seconds": seconds} for seconds, worker in wrong[:SHOWN]
        ],
    }
    facts = {"host": worst.host, "time": span(ahead), "n": len(hosts)}
    return [Explanation("clock_skew", text % facts, evidence, step)]
