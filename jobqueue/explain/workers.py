"""no_worker, workers_busy, host_exhausted, clock_skew and monitor_dead: which workers run, and what they do not do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

from django.db import Error, connections
from django.db.models import Case, IntegerField, Q, When
from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import SKEW_SECONDS, Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import Slot, Unestimated
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue
from jobqueue.explain.database import SlowCommit, slow_commit_ms
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, Finding, Rank, counted, id_list, queue_list, span
from jobqueue.explain.row_locks import Locks, is_of_jobs
from jobqueue.explain.rows import ReadJob
from jobqueue.explain.stacks import ANSWERS_MAX, RECENT_SECONDS, waits_of_workers
from jobqueue.maintenance import worker_rows
from jobqueue.maintenance.worker_rows import RESOURCES, alive, silent, was_cut
from jobqueue.models import Job, Worker
from jobqueue.schedules.listing import late_names
from jobqueue.worker.shared.queue_choice import Selection, parse

#: rows that are read: of a cluster that has more, an answer could be wrong
WORKERS_MAX = 100_000
#: the pauses of a worker between two processes that crash are shorter
CRASHED_SECONDS = 60.0
#: choices, tasks and workers that the evidence names
SHOWN = 10
#: leases of each worker, and of all that have run out, are counted up to this
LEASES_MAX = 1000


class RunningWorker(NamedTuple):
    """What the row of a worker that runs says."""

    name: str
    queues: str
    threads: int
    host: str
    clock_ahead_seconds: float | None
    told: int  # 1: it has told its stacks a moment ago
    short: tuple[Short, ...]  # what it is short of
    commit_ms: int | None  # how long a commit takes for it, if that is slow


def slow_commits(workers: Sequence[RunningWorker]) -> list[SlowCommit]:
    """What the rows say about commits that take long."""
    return [SlowCommit(one.commit_ms, one.name, one.host) for one in workers if one.commit_ms is not None]


def crash_loop(using: str) -> list[Explanation]:
    """no_worker, if the last worker was killed a moment ago: its command starts another one. One statement."""
    rows = Worker.objects.using(using).filter(stopped_at__gte=UtcNowPlus(-CRASHED_SECONDS)).annotate(now=UtcNow())
    died = Q(stop_reason__startswith="was killed by") | Q(stop_reason__startswith="exited with")
    for worker in rows.filter(died).order_by("-stopped_at")[:1]:
        seconds = (worker.now - worker.stopped_at).total_seconds()
        facts = {"worker": worker.name, "reason": worker.stop_reason, "time": span(seconds)}
        text = gettext(
            "No worker process is running: the last one, %(worker)s, died %(time)s ago (%(reason)s). Its command "
            "starts another one after a pause, which grows with each crash."
        )
        step = gettext("Find the job that kills it: the log of the worker names it. Cancel it, or let it run alone.")
        evidence: dict[str, JSON] = {"living": 0, "serve": [], "worker": worker.name, "reason": worker.stop_reason}
        return [Explanation("no_worker", text % facts, evidence, step)]
    return []


def read_workers(using: str) -> list[RunningWorker]:
    """Up to WORKERS_MAX workers that run. One statement."""
    told = Case(When(stacks_at__gte=UtcNowPlus(-RECENT_SECONDS), then=1), default=0, output_field=IntegerField())
    found = alive(load().worker_silent_seconds, using=using).annotate(told=told)
    # MariaDB would read the rows of workers that have stopped.
    rows = vendor(using).force_index(found, "ix_worker_alive")
    columns = rows.values_list("name", "queues", "concurrency", "host", "clock_ahead_seconds", "told", "troubles")
    return [
        RunningWorker(
            name, queues, threads, host, ahead, told, shortages(name, host, troubles), slow_commit_ms(troubles)
        )
        for name, queues, threads, host, ahead, told, troubles in columns[:WORKERS_MAX]
    ]


_MB = 2**20


class Short(NamedTuple):
    """A resource that a worker is short of."""

    worker: str
    host: str
    resource: str
    free: int
    limit: int
    of: str


def shortages(worker: str, host: str, troubles: JSON) -> tuple[Short, ...]:
    """The troubles in the column `troubles` of a worker's row, without those that cannot be read."""
    found = []
    for name in RESOURCES:
        one = troubles.get(name) if isinstance(troubles, dict) else None
        if isinstance(one, dict):
            free, limit = one.get("free"), one.get("limit")
            if isinstance(free, int) and isinstance(limit, int):
                found.append(Short(worker, host, name, free, limit, str(one.get("of"))))
    return tuple(found)


def host_exhausted(shorts: Sequence[Short]) -> list[Explanation]:
    """One explanation for each host and resource, with the figures of the worker that has least left."""
    groups: dict[tuple[str, str], list[Short]] = {}
    for short in shorts:
        groups.setdefault((short.host, short.resource), []).append(short)
    return [_short_of(sorted(group, key=lambda one: (one.free, one.worker))) for group in groups.values()]


def _short_of(group: Sequence[Short]) -> Explanation:
    least = group[0]
    facts = {"host": least.host, "worker": least.worker, "of": least.of}
    facts |= {"free": str(least.free // _MB), "limit": str(least.limit // _MB)}
    if least.resource == "descriptors":
        facts |= {"free": str(least.limit - least.free), "limit": str(least.limit)}
    evidence: dict[str, JSON] = {
        "host": least.host,
        "resource": least.resource,
        "free": least.free,
        "limit": least.limit,
        "of": least.of,
        "worker_names": [one.worker for one in group[:SHOWN]],
    }
    return Explanation("host_exhausted", _short_text(least) % facts, evidence, _short_step(least.resource))


def _short_text(least: Short) -> str:
    if least.resource == "memory" and least.of == "cgroup":
        return gettext(
            "Host %(host)s is short of memory: %(free)s of the %(limit)s MB that the control group (container) of "
            "worker %(worker)s may use are free. The kernel may kill processes, and jobs may fail."
        )
    if least.resource == "memory":
        return gettext(
            "Host %(host)s of worker %(worker)s is short of memory: %(free)s of %(limit)s MB are free. The kernel may "
            "kill processes, and jobs may fail."
        )
    if least.resource == "disk":
        return gettext(
            "Host %(host)s of worker %(worker)s is short of disk space: %(free)s of %(limit)s MB are free where %(of)s "
            "is. Jobs that write files fail."
        )
    if least.of == "host":
        return gettext(
            "Host %(host)s of worker %(worker)s is short of file descriptors: all its processes together have "
            "%(free)s of %(limit)s open. No process can open files or connections soon."
        )
    return gettext(
        "Worker %(worker)s on host %(host)s is short of file descriptors: it has %(free)s of %(limit)s open. Soon it "
        "can open no files and no connections, and its jobs fail."
    )


def _short_step(resource: str) -> str:
    if resource == "memory":
        return gettext(
            "Give the host or the container more memory, or use less: fewer --processes or --concurrency, or "
            "--max-rss, which replaces processes that grow."
        )
    if resource == "disk":
        return gettext("Delete files there, or make the disk larger.")
    return gettext(
        "Find out which jobs leave files or sockets open (ls -l /proc/PID/fd). Restart the worker, and raise the limit "
        "(ulimit -n, or LimitNOFILE of systemd) if the jobs need so many."
    )


def serve(queue: str, workers: Sequence[RunningWorker]) -> list[RunningWorker]:
    """Those of `workers` that serve `queue`."""
    return [worker for worker in workers if _selection(worker.queues).serves(queue)]


def no_worker(queues: Collection[str], workers: Sequence[RunningWorker], queue: str | None = None) -> Explanation:
    """Explain that none of `workers`, all that run, serves `queue` or, if that is None, `queues`."""
    served = sorted({worker.queues for worker in workers})[:SHOWN]
    evidence: dict[str, JSON] = {} if queue is None else {"queue": queue}
    evidence |= {"living": len(workers), "serve": list(served)}
    facts = {"queue": queue, "queues": ",".join(sorted(queues)[:SHOWN])}
    step = gettext("Start a worker: python manage.py runworker")
    if workers and queue is not None:
        text = gettext("No worker that runs serves queue %(queue)s. Those that run serve: %(queues)s")
        step = gettext("Start a worker for it, or add it to --queues of one that runs: runworker --queues %(queue)s")
        text = text % {"queue": queue, "queues": "; ".join(served)}
    elif workers:
        text = gettext("No worker that runs serves these queues. Those that run serve: %(served)s.")
        step = gettext(
            "Start a worker for them (runworker --queues %(queues)s), or add them to --queues of a worker that runs."
        )
        text = text % {"served": "; ".join(served)}
    elif queue is not None:
        text = gettext("No worker is running, so no job of queue %(queue)s starts.") % facts
    else:
        text = gettext("No worker is running, so no job starts.")
    return Explanation("no_worker", text, evidence, step % facts)


def waits_for_worker(
    serving: Sequence[RunningWorker], queues: Collection[str], locks: Locks, using: str, queue: str | None = None
) -> list[Finding]:
    """What due jobs wait for that nothing else holds back: workers_busy, row_lock, and what the threads wait for.

    The likeliest first. Of `queue` or, if that is None, of `queues`. One statement for each hundred workers, and those
    of `locks`; four or five more if workers have told their stacks a moment ago.
    """
    busy = _busy(serving, queues, using, queue)
    full = bool(busy.evidence["full"])
    idle = [] if full else locks.idle
    found = [Finding(one, Rank.BLOCKS if full or is_of_jobs(one) else Rank.HOLDS_UP) for one in locks.waits]
    found += [Finding(one, Rank.BLOCKS) for one in idle]
    if found:
        step = gettext("End the wait of row_lock first: more workers would wait, too, or pass over the same rows.")
        busy = replace(busy, next_step=step)
    told = [worker.name for worker in serving if worker.told]
    waits = waits_of_workers(told, using) if told else []
    # With free threads, only what keeps the workers themselves from claiming is in the way of these jobs.
    first = [one for one in waits if full or one.evidence.get("kind") == "refused"]
    found += map(Finding, first)
    found.append(Finding(busy, Rank.HOLDS_UP if full else Rank.MOVES))
    return found + [Finding(one, Rank.LATER) for one in waits if one not in first]


def _busy(serving: Sequence[RunningWorker], queues: Collection[str], using: str, queue: str | None) -> Explanation:
    names = sorted(worker.name for worker in serving)
    held = leases_of(names, using)
    leases, threads = held.total(), sum(worker.threads for worker in serving)
    facts = {"queue": queue, "queues": queue_list(queues), "held": leases, "threads": threads, "workers": len(names)}
    facts["tasks"] = tasks_in_words(held)
    evidence: dict[str, JSON] = {"worker_names": list(names[:SHOWN])} if queue is None else {"queue": queue}
    evidence |= {"leases": leases, "threads": threads, "workers": len(names), "full": leases >= threads}
    evidence["tasks"] = dict(held.most_common(SHOWN))
    if leases < threads:
        step = gettext("Wait a few seconds. If nothing starts then, read the log of the workers.")
        text = gettext(
            "Nothing holds back what is due in queue %(queue)s: the next free worker starts it. Its workers hold "
            "%(held)d jobs, with %(threads)d threads."
        )
        if queue is None:
            text = gettext(
                "Nothing holds back what is due in these queues: the next free worker starts it. Of %(threads)d "
                "threads of %(workers)d workers, %(held)d hold a job."
            )
        return Explanation("workers_busy", text % facts, evidence, step)
    step = gettext("A job starts when another one ends. Start more workers if jobs wait for too long.")
    text = gettext(
        "The workers of queue %(queue)s are busy: they hold %(held)d jobs, with %(threads)d threads. They run: "
        "%(tasks)s."
    )
    if queue is None:
        text = gettext(
            "The workers of these queues are busy: %(workers)d hold %(held)d jobs, with %(threads)d threads. They "
            "run: %(tasks)s."
        )
    return Explanation("workers_busy", text % facts, evidence, step)


def leases_of(workers: Sequence[str], using: str) -> Counter[str]:
    """The jobs that these workers hold, of each up to LEASES_MAX, by task. One statement for each hundred of them.

    Jobs without a task are counted under the handler of their queue: "@handler mail".
    """
    rows = _leases(using, LEASES_MAX, "task", "queue").seek_each([{"worker": name} for name in workers])
    return Counter(task or f"@handler {queue}" for task, queue in rows)


def tasks_in_words(held: Counter[str]) -> str:
    """The tasks of most of these jobs, with the number of each, as text."""
    shown = [f"{task} ({number})" for task, number in held.most_common(3)]
    return ", ".join(shown + ["..."] * (len(held) > len(shown))) or "-"


@cache
def _leases(using: str, most: int, *columns: str) -> Prepared:
    # By equality: for a list of names MySQL may read the whole index.
    rows = Job.objects.using(using).filter(
        locked_by=Slot("worker", NameField()), status=Unestimated(Job.Status.PROCESSING)
    )
    return prepare_rows(vendor(using).force_index(rows, "ix_worker").values_list(*columns)[:most])


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


#: how long answers are waited for, and between two looks for them
WAIT_SECONDS, LOOK_SECONDS = 3.0, 0.1


def ask_workers(found: Sequence[Explanation], *, job_id: int | None, queue: str | None, using: str) -> bool:
    """Ask the workers that `found` is about, and wait for their answers, at most WAIT_SECONDS; whether any has come.

    `found` explains a job, a queue or, without either, the backlog. Nobody is asked if it names no running job and no
    busy worker; if the database answers so slowly that it does not name all causes; in an open transaction, which
    workers do not see; or by an account that may not write.
    """
    codes = {one.code for one in found}
    if any(one.evidence.get("looked_at_all") is False for one in found):
        return False
    if connections[using].in_atomic_block or not codes & {"running", "workers_busy"}:
        return False
    names = _of_job(job_id, using) if job_id is not None else []
    names = (names or _of_queues(queue, using, idle="workers_busy" in codes))[:ANSWERS_MAX]
    try:
        if names:
            worker_rows.ask_stacks(names, using=using)
    except (Error, DatabaseBusy):
        connections[using].close()
        return False
    until, waiting = time.monotonic() + WAIT_SECONDS, names
    while waiting and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        waiting = worker_rows.stacks_asked(names, using=using)
    return len(waiting) < len(names)


def _of_job(job_id: int, using: str) -> list[str]:
    """The worker that runs this job."""
    rows = Job.objects.using(using).filter(pk=job_id, status=Job.Status.PROCESSING, locked_by__isnull=False)
    return [str(name) for name in rows.values_list("locked_by", flat=True)]


def _of_queues(queue: str | None, using: str, *, idle: bool) -> list[str]:
    """The workers that serve a queue, or any, and hold jobs; if none does and `idle`, all of them."""
    workers = read_workers(using)
    names = sorted(worker.name for worker in (workers if queue is None else serve(queue, workers)))
    any_lease = _leases(using, 1, "locked_by")
    busy = {name for (name,) in any_lease.rows_of_each([{"worker": name} for name in names])} if names else ()
    return sorted(busy) or (names if idle else [])


#: silent workers that are named, and schedules that are late and counted
WORKERS_SHOWN, LATE_MAX = 10, 1000


def monitor_dead(using: str) -> list[Finding]:
    """monitor_dead, if leases ran out, or heartbeats ended, too long ago. Two statements.

    Every worker's monitor ends such leases and marks such workers about once a second.
    """
    seconds = load().worker_silent_seconds
    rows = _lapsed(using, seconds).rows()
    # A worker counts as silent after that time. Monitors get the same time again to act on it.
    names = list(silent(2 * seconds, using=using).values_list("name", flat=True)[:WORKERS_SHOWN])
    if not rows and not names:
        return []
    ids, capped = [row[0] for row in rows], len(rows) >= LEASES_MAX
    queues = {queue for _, queue, _, _ in rows}
    evidence: dict[str, JSON] = {"leases": len(ids), "jobs": list(ids[:JOBS_SHOWN]), "silent_workers": list(names)}
    evidence["seconds"] = max(((now - until).total_seconds() for _, _, until, now in rows), default=None)
    if rows:
        text = gettext(
            "Nobody ends leases that have run out: %(n)s have been over for up to %(time)s (jobs %(jobs)s). The "
            "monitors of workers, or reap_leases, should end them within seconds."
        )
    else:
        text = gettext(
            "Workers have been silent for more than %(limit)s, and nobody has marked them as stopped: %(workers)s. "
            "Monitors of other workers, or reap_leases, should do that within seconds."
        )
    facts = {"n": counted(len(ids), capped=capped), "jobs": id_list(ids), "workers": ", ".join(names)}
    facts |= {"time": span(float(evidence["seconds"] or 0)), "limit": span(2 * seconds)}
    one = Explanation("monitor_dead", text % facts, evidence, _step())
    return [Finding(one, queues=queues, jobs=len(ids), capped=capped)]


def late_schedules(using: str) -> list[Finding]:
    """monitor_dead, if schedules are due and no worker fires them. One statement."""
    names, seconds = late_names(using, LATE_MAX)
    if not names:
        return []
    text = gettext(
        "Schedules are due and no worker fires them: %(n)s (%(names)s); the first one has been due for %(time)s. Their "
        "jobs are not added."
    )
    facts = {"n": counted(len(names), capped=len(names) >= LATE_MAX), "names": queue_list(names), "time": span(seconds)}
    evidence: dict[str, JSON] = {"kind": "schedules", "schedules": list(names[:WORKERS_SHOWN])}
    evidence |= {"late": len(names), "seconds": seconds}
    step = gettext("Start a worker without --no-scheduler. If one runs, look for 'schedule' in its log.")
    return [Finding(Explanation("monitor_dead", text % facts, evidence, step))]


def nobody_reaps(job: ReadJob) -> list[Explanation]:
    """monitor_dead, if the lease of a PROCESSING job ran out WORKER_SILENT_SECONDS ago or earlier."""
    seconds = 0.0 if job.lock_until is None else (job.now - job.lock_until).total_seconds()
    if seconds < load().worker_silent_seconds:
        return []
    text = gettext("The lease of job %(id)d ran out %(time)s ago, and nobody has ended it.")
    evidence: dict[str, JSON] = {"leases": 1, "jobs": [job.pk], "seconds": seconds}
    return [Explanation("monitor_dead", text % {"id": job.pk, "time": span(seconds)}, evidence, _step())]


def _step() -> str:
    return gettext("Start a worker, or run reap_leases. If workers run, look at the log of their supervisors.")


@lru_cache(maxsize=8)
def _lapsed(using: str, seconds: float) -> Prepared:
    rows = Job.objects.using(using).filter(
        status=Unestimated(Job.Status.PROCESSING), lock_until__lt=UtcNowPlus(-seconds)
    )
    rows = vendor(using).force_index(rows.order_by("lock_until"), "ix_lease")
    return prepare_rows(rows.values_list("pk", "queue", Selected("lock_until"), Selected(UtcNow()))[:LEASES_MAX])
