"""no_worker and workers_busy of many queues: those without a worker, and those that the same workers serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from django.utils.translation import gettext

from jobqueue.explain.explanation import Explanation
from jobqueue.explain.findings import Findings, Rank, queue_list
from jobqueue.explain.hosts import host_exhausted
from jobqueue.explain.row_locks import forgotten, is_of_jobs, row_locks
from jobqueue.explain.serving import SHOWN, beside_locks, clock_skew, leases_of, most_run, serve, tasks_in_words
from jobqueue.explain.slowness import SlowCommit
from jobqueue.explain.waits import waits_of_workers
from jobqueue.explain.workers import RunningWorker, crash_loop, read_workers, slow_commits
from jobqueue.payload import JSON


class Crews:
    """The workers that run, and the due jobs that wait for them alone."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._workers = read_workers(using)
        self._of: dict[str, frozenset[str]] = {}
        self._unserved: list[tuple[str, int, bool]] = []
        self._free: defaultdict[frozenset[str], list[tuple[str, int, bool]]] = defaultdict(list)

    def serve(self, queue: str) -> bool:
        """Whether a worker that runs serves `queue`."""
        return bool(self._serving(queue))

    def without_worker(self, queue: str, jobs: int, *, capped: bool) -> None:
        """Record due jobs of a queue that none serves."""
        self._unserved.append((queue, jobs, capped))

    def free(self, queue: str, jobs: int, *, capped: bool) -> None:
        """Record due jobs that wait only for a worker to take them."""
        self._free[self._serving(queue)].append((queue, jobs, capped))

    def tell(self, findings: Findings) -> None:
        """Add what was recorded: one explanation for all queues without a worker, one for each crew of others.

        And row_lock: the first cause of those for whom no thread is free, and that of all if the job table is locked.
        """
        locks = row_locks(self._using)
        idle = [] if locks or not self._free else forgotten(self._using)
        for one in locks:
            rank = Rank.BLOCKS if is_of_jobs(one) else Rank.HOLDS_UP
            findings.add(one, (), 0, rank=rank)
        if self._unserved:
            names = [queue for queue, _, _ in self._unserved]
            crashed = [] if self._workers else crash_loop(self._using)
            one = crashed[0] if crashed else _no_worker(names, self._workers)
            _add(findings, one, self._unserved, Rank.HOLDS_UP)
        self._tell_short(findings)
        for crew, waiting in self._free.items():
            one = self._busy(crew, [queue for queue, _, _ in waiting])
            full = bool(one.evidence["full"])
            for lock in locks if full else idle:
                _add(findings, lock, waiting, Rank.BLOCKS)
            if locks if full else idle:
                one = beside_locks(one)
            _add(findings, one, waiting, Rank.HOLDS_UP if full else Rank.MOVES)
            told = [worker.name for worker in self._workers if worker.told and worker.name in crew]
            for other in waits_of_workers(told, self._using) if told else []:
                # With free threads, jobs wait only for workers that cannot claim.
                holds = full or other.evidence.get("kind") == "refused"
                _add(findings, other, waiting, Rank.HOLDS_UP if holds else Rank.LATER)

    def waits(self) -> list[Explanation]:
        """What jobs that run wait for, where none waits behind them: no statement, or three or four."""
        told = [worker.name for worker in self._workers if worker.told]
        return waits_of_workers(told, self._using) if told else []

    def commits(self) -> list[SlowCommit]:
        """Commits that take long. No statement."""
        return slow_commits(self._workers)

    def nobody(self) -> list[Explanation]:
        """no_worker, if no worker runs at all. No statement."""
        return [] if self._workers else [_no_worker([], self._workers)]

    def short(self) -> list[Explanation]:
        """The host_exhausted findings, without a query."""
        return host_exhausted([each for worker in self._workers for each in worker.short])

    def skew(self) -> list[Explanation]:
        """The clock_skew findings, without a query."""
        return clock_skew(self._workers)

    def _tell_short(self, findings: Findings) -> None:
        """Add host_exhausted, also where no job waits; before the others if jobs wait for such workers alone."""
        short = {worker.name for worker in self._workers if worker.short}
        for one in self.short():
            short_of = (one.evidence["host"], one.evidence["resource"])
            named = {
                worker.name
                for worker in self._workers
                if any((each.host, each.resource) == short_of for each in worker.short)
            }
            crews = [(crew, waiting) for crew, waiting in self._free.items() if crew & named]
            rank = Rank.HOLDS_UP if any(crew <= short for crew, _ in crews) else Rank.MOVES
            _add(findings, one, [each for _, waiting in crews for each in waiting], rank)

    def _serving(self, queue: str) -> frozenset[str]:
        if queue not in self._of:
            self._of[queue] = frozenset(serve(queue, self._workers).threads)
        return self._of[queue]

    def _busy(self, crew: frozenset[str], queues: Collection[str]) -> Explanation:
        threads = sum(worker.threads for worker in self._workers if worker.name in crew)
        held = leases_of(sorted(crew), self._using)
        leases = held.total()
        facts: dict[str, object] = {
            "queues": queue_list(queues),
            "held": leases,
            "threads": threads,
            "workers": len(crew),
        }
        evidence: dict[str, JSON] = {"leases": leases, "threads": threads, "workers": len(crew)}
        evidence |= {"full": leases >= threads, "tasks": most_run(held), "worker_names": list(sorted(crew)[:SHOWN])}
        if leases >= threads:
            text = gettext(
                "The workers of these queues are busy: %(workers)d hold %(held)d jobs, with %(threads)d threads. They "
                "run: %(tasks)s."
            )
            facts["tasks"] = tasks_in_words(held)
            step = gettext("A job starts when another one ends. Start more workers if jobs wait for too long.")
        else:
            text = gettext(
                "Nothing holds back what is due in these queues: the next free worker starts it. Of %(threads)d "
                "threads of %(workers)d workers, %(held)d hold a job."
            )
            step = gettext("Wait a few seconds. If nothing starts then, read the log of the workers.")
        return Explanation("workers_busy", text % facts, evidence, step)


def _add(findings: Findings, one: Explanation, waiting: list[tuple[str, int, bool]], rank: Rank) -> None:
    jobs, capped = sum(number for _, number, _ in waiting), any(capped for _, _, capped in waiting)
    findings.add(one, [queue for queue, _, _ in waiting], jobs, capped=capped, rank=rank)


def _no_worker(queues: Collection[str], workers: list[RunningWorker]) -> Explanation:
    served = sorted({worker.queues for worker in workers})[:SHOWN]
    evidence: dict[str, JSON] = {"living": len(workers), "serve": list(served)}
    if not workers:
        text = gettext("No worker is running, so no job starts.")
        return Explanation("no_worker", text, evidence, gettext("Start a worker: python manage.py runworker"))
    text = gettext("No worker that runs serves these queues. Those that run serve: %(served)s.")
    step = gettext(
        "Start a worker for them (runworker --queues %(queues)s), or add them to --queues of a worker that runs."
    )
    return Explanation(
        "no_worker",
        text % {"served": "; ".join(served)},
        evidence,
        step % {"queues": ",".join(sorted(queues)[:SHOWN])},
    )
