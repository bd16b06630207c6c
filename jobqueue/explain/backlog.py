"""explain_backlog(): why the due jobs of the whole database do not start, the cause of most of them first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, lru_cache

from django.db import connections
from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.db.expressions import Slot, Unestimated
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.explain.database import Stopwatch, full, read_only
from jobqueue.explain.explanation import (
    JOBS_SHOWN,
    QUEUES_SHOWN,
    Explanation,
    Finding,
    Findings,
    Look,
    Rank,
    counted,
    id_list,
    queue_list,
)
from jobqueue.explain.jobs import reasons_of
from jobqueue.explain.limits import limits_of_whole_queue, pause_at
from jobqueue.explain.row_locks import Locks, is_of_jobs
from jobqueue.explain.rows import (
    COUNT_LEAST,
    COUNT_MAX,
    ENTRIES_MAX,
    Delayed,
    Place,
    ReadJob,
    Spot,
    Survey,
    first_due_of_level,
    next_of_level,
    read_jobs,
    read_places,
    survey,
)
from jobqueue.explain.stacks import waits_of_workers
from jobqueue.explain.states import due_later, held, is_parked, not_due, note_zone
from jobqueue.explain.workers import (
    RunningWorker,
    clock_skew,
    crash_loop,
    host_exhausted,
    late_schedules,
    monitor_dead,
    no_worker,
    read_workers,
    serve,
    slow_commits,
    waits_for_worker,
)
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import GateWait, Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE

#: pairs of queue and gate whose first job is looked at, those with the most due jobs; and how many of each gate
SPOTS_MAX, SPOTS_OF_GATE = 50, 10
#: running jobs are counted up to this
RUNNING_MAX = 1000
#: the jobs of a queue and priority that are due next and are read, and the priorities in all that are looked at.
#: Parked jobs come back within about a minute, so they are among the next ones.
NEXT_MAX, NEXT_LEVELS_MAX = 50, 100
#: the first jobs of a queue and priority whose wait_reasons are read, the priorities that are looked at, and the
#: subjects that are counted: those with the most jobs among the ones read
SAMPLE_MAX, SAMPLE_LEVELS_MAX, SUBJECTS_MAX = 200, 50, 20


def explain_backlog(*, using: str | None = None, all_causes: bool = False) -> list[Explanation]:
    """Why due jobs do not start, in all queues: each cause once, that of most due jobs first. Never empty.

    In the caller's transaction, by index seeks whose number has a limit, however many jobs and queues there are. If the
    database answers slowly, only what fits into a second is looked at, unless `all_causes`. The evidence also has
    `waiting_jobs`, `waiting_capped`, `queues`, `queues_total` and `queues_cut`.
    """
    alias = alias_of(using)
    with explain_missing_table(alias):
        watch = Stopwatch(alias, all_causes=all_causes)
        now = watch.first(lambda: read_now(alias))
        refusal = read_only(alias) if watch.has_time("read_only") else []
        looks = watch.has_time(Look.BACKLOG, statements=20)
        seen = survey(now, alias) if looks else Survey(now, [], cut=True)
        workers = read_workers(alias) if watch.has_time(Look.WORKERS) else None
        backlog = _Backlog(seen, workers or [], watch, alias)
        findings = Findings(cut=seen.cut or len(backlog.due) > SPOTS_MAX, counted=looks)
        findings.add([_sum(backlog.due).finding(one, Rank.STOPS_ALL) for one in refusal])
        findings.add(backlog.of_jobs())
        findings.add(backlog.of_workers())
        if workers == [] and not looks:
            findings.add([Finding(no_worker([], workers))])
        findings.add(backlog.of_database())
        if looks:
            # What may be wrong where no job waits, too.
            findings.add([*monitor_dead(alias), *late_schedules(alias), *map(Finding, full(alias))])
        return (findings.told() or backlog.idle()) + clock_skew(workers or [])


@dataclass(slots=True)
class Group:
    """Jobs that wait for the same: their number, and the first one, which tells what that is."""

    queues: set[str]
    jobs: int
    first: int = 0
    capped: bool = False

    def finding(self, one: Explanation, rank: Rank | None = None) -> Finding:
        """An explanation of all these jobs."""
        # Workflows that go on have such nodes, and workers open gates at which nothing holds a job.
        moves = (one.code == "parents" and not one.evidence.get("held")) or "gate" in one.evidence
        if rank is None:
            rank = Rank.MOVES if moves else Rank.HOLDS_UP
        return Finding(one, rank, set(self.queues), self.jobs, self.capped)


def _of_spot(spot: Spot) -> Group:
    return Group({spot.queue}, spot.due, spot.first_due, spot.capped)


def _sum(groups: Iterable[Group]) -> Group:
    found = Group(set(), 0)
    for one in groups:
        found.queues |= one.queues
        found.jobs += one.jobs
        found.capped = found.capped or one.capped
    return found


class _Backlog:
    """One look at the queues of a survey, and at the workers that run."""

    def __init__(self, seen: Survey, workers: Sequence[RunningWorker], watch: Stopwatch, using: str) -> None:
        self._seen, self._workers, self._watch, self._using = seen, workers, watch, using
        self._locks = Locks(using)
        self.due = [_of_spot(spot) for spot in seen.spots if spot.due]
        self._serving: dict[str, list[RunningWorker]] = {}
        #: due jobs that wait for a worker alone: where none serves their queue, and by the workers that do
        self._unserved: list[Group] = []
        self._free: defaultdict[tuple[RunningWorker, ...], list[Group]] = defaultdict(list)

    def of_jobs(self) -> Iterator[Finding]:
        """What jobs wait for besides workers."""
        spots = _chosen([spot for spot in self._seen.spots if spot.due])
        groups = waiters([spot for spot in spots if spot.gate == FLOW_GATE], self._using)
        delays = read_delays(self._seen.spots, self._using)
        wanted = [spot.first_due for spot in spots] + [one.first for one in groups] + delays.firsts
        jobs = {job.pk: job for job in read_jobs(wanted, self._using)} if wanted else {}
        queues = {spot.queue for spot in self._seen.spots} | {job.queue for job in jobs.values()}
        places = read_places(sorted(queues), self._seen.now, self._using)
        stopped = set[str]()
        for queue, group in self._by_queue().items():
            pauses = pause_at(places[queue])
            yield from map(group.finding, pauses)
            if not self._serve(queue):
                self._unserved.append(group)
            if pauses or not self._serve(queue):
                stopped.add(queue)
        for spot in spots:
            if spot.gate == 0 and spot.queue not in stopped and _waits(jobs.get(spot.first_due)):
                yield from self._at_no_gate(spot, jobs[spot.first_due], places[spot.queue])
        for group in [_of_spot(spot) for spot in spots if spot.gate not in (0, FLOW_GATE)] + groups:
            if _waits(jobs.get(group.first)):
                job = jobs[group.first]
                yield from map(group.finding, held(job) or reasons_of(job, places[job.queue], self._watch))
        yield from delays.findings(jobs, self._seen.now, self._using)

    def of_workers(self) -> Iterator[Finding]:
        """What jobs wait for that nothing else holds back, and what keeps the workers from their work."""
        self._watch.note_commits(slow_commits(self._workers))
        # In a transaction with the statements of a savepoint.
        needed = 5 if connections[self._using].in_atomic_block else 3
        if self._watch.has_time("row_lock", statements=needed):
            for one in self._locks.waits:
                yield Finding(one, Rank.BLOCKS if is_of_jobs(one) else Rank.HOLDS_UP)
        if self._unserved:
            group = _sum(self._unserved)
            crashed = [] if self._workers else crash_loop(self._using)
            yield group.finding(crashed[0] if crashed else no_worker(group.queues, self._workers))
        yield from self._short()
        for serving, groups in self._free.items():
            group = _sum(groups)
            for found in waits_for_worker(serving, group.queues, self._locks, self._using):
                # While threads are free, a lock on a table of others holds up no job that is due.
                if found.one not in self._locks.waits or found.rank == Rank.BLOCKS:
                    yield group.finding(found.one, found.rank)

    def of_database(self) -> Iterator[Finding]:
        """database_slow for all due jobs at no gate. One statement if there is one."""
        spots = [spot for spot in self._seen.spots if spot.due and spot.gate == 0]
        if spots:
            self._watch.claim(spots[0].queue, spots[0].due_levels[0].level)
        yield from map(_sum(map(_of_spot, spots)).finding, self._watch.told())

    def idle(self) -> list[Explanation]:
        """Explain a database in which no job waits: what the running jobs wait for."""
        found = nothing_waits(self._seen.cut, self._using)
        told = [worker.name for worker in self._workers if worker.told]
        return (waits_of_workers(told, self._using) if told and found[0].code == "running" else []) + found

    def _serve(self, queue: str) -> list[RunningWorker]:
        if queue not in self._serving:
            self._serving[queue] = serve(queue, self._workers)
        return self._serving[queue]

    def _by_queue(self) -> dict[str, Group]:
        """The due jobs of each queue that a pause, or the lack of a worker, keeps from starting."""
        found: dict[str, list[Group]] = {}
        for spot in self._seen.spots:
            if spot.due and spot.gate not in (HELD_GATE, PARENTS_GATE):
                found.setdefault(spot.queue, []).append(_of_spot(spot))
        return {queue: _sum(groups) for queue, groups in found.items()}

    def _at_no_gate(self, spot: Spot, job: ReadJob, place: Place) -> Iterator[Finding]:
        """Of a queue that is served: limits of the queue, then what its first due job itself meets."""
        group = _of_spot(spot)
        if limits := limits_of_whole_queue(place):
            yield from map(group.finding, limits)
            return
        # A claim would put the first one behind a gate, and go on with jobs of other tasks.
        own = reasons_of(job, place, self._watch)
        alike = self._alike(spot, job) if own else 0
        yield from map(Group({spot.queue}, alike, job.pk, alike >= SAMPLE_MAX).finding, own)
        if spot.due > alike:
            self._free[tuple(self._serve(spot.queue))].append(replace(group, jobs=spot.due - alike))

    def _alike(self, spot: Spot, job: ReadJob) -> int:
        """How many of the next due jobs are of the same task."""
        rows = first_due_of_level(self._using, SAMPLE_MAX).rows(**spot.due_levels[0]._asdict())
        return max(1, len([1 for _, _, _, task, _ in rows if task == job.task]))

    def _short(self) -> Iterator[Finding]:
        """host_exhausted, also where no job waits; before the others if jobs wait for such workers alone."""
        for one in host_exhausted([each for worker in self._workers for each in worker.short]):
            short_of = (one.evidence["host"], one.evidence["resource"])
            named = {
                worker.name
                for worker in self._workers
                if any((each.host, each.resource) == short_of for each in worker.short)
            }
            hit = [serving for serving in self._free if named & {worker.name for worker in serving}]
            alone = any(all(worker.short for worker in serving) for serving in hit)
            rank = Rank.HOLDS_UP if alone else Rank.LATER
            yield _sum(group for serving in hit for group in self._free[serving]).finding(one, rank)


def _waits(job: ReadJob | None) -> bool:
    """Whether a job of the survey still waits."""
    return job is not None and job.status == Job.Status.READY


def _chosen(due: Sequence[Spot]) -> list[Spot]:
    """The spots to look at, some of each gate: most jobs wait at no gate, and would crowd out the others."""
    of_gate, first, others = Counter[int](), list[Spot](), list[Spot]()
    for spot in due:
        of_gate[spot.gate] += 1
        (first if of_gate[spot.gate] <= SPOTS_OF_GATE else others).append(spot)
    return [*first, *others][:SPOTS_MAX]


def nothing_waits(cut: bool, using: str) -> list[Explanation]:
    """That jobs run, or that none does. One statement. `cut`: not all queues were looked at for jobs that wait."""
    rows = _running(using).rows()
    ids, queues = sorted(job_id for job_id, _ in rows), sorted({queue for _, queue in rows})
    evidence: dict[str, JSON] = {
        "running": len(ids),
        "jobs": list(ids[:JOBS_SHOWN]),
        "queues": list(queues[:QUEUES_SHOWN]),
        "queues_total": len(queues),
        "queues_cut": cut,
    }
    if not ids:
        text = gettext("No job waits or runs: all of them have ended, or there was none.")
        return [Explanation("ended", text, evidence, gettext("Nothing is needed."))]
    facts = {"n": counted(len(ids), capped=len(ids) == RUNNING_MAX), "jobs": id_list(ids), "queues": queue_list(queues)}
    text = gettext("No job waits. Jobs that run: %(n)s (%(jobs)s), in %(queues)s.")
    step = gettext("Wait until they end, or ask about each of them: jobs explain with its id.")
    return [Explanation("running", text % facts, evidence, step)]


@cache
def _running(using: str) -> Prepared:
    rows = Job.objects.using(using).filter(status=Unestimated(Job.Status.PROCESSING)).order_by("lock_until")
    return prepare_rows(vendor(using).force_index(rows, "ix_lease").values_list("pk", "queue")[:RUNNING_MAX])


@dataclass(slots=True)
class Delays:
    """Jobs at no gate whose time has not come."""

    parked: list[Group] = field(default_factory=list)
    next: Delayed | None = None  # the one that is due first, of the queues without due jobs
    waiting: Counter[str] = field(default_factory=Counter)  # jobs that were read in these queues
    capped: bool = False

    @property
    def firsts(self) -> list[int]:
        """The ids of the jobs whose rows findings() needs."""
        return [one.first for one in self.parked] + ([self.next.job_id] if self.next else [])

    def findings(self, jobs: Mapping[int, ReadJob], now: datetime, using: str) -> Iterator[Finding]:
        """unknown_task for each queue and task, and one not_due for all queues in which no job is due.

        One statement at most.
        """
        for group in self.parked:
            job = jobs.get(group.first)
            own = [] if job is None else [one for one in not_due(job) if one.code == "unknown_task"]
            yield from map(replace(group, capped=group.jobs >= NEXT_MAX).finding, own)
        job = jobs.get(self.next.job_id) if self.next else None
        if job is not None and self.waiting:
            text = gettext(
                "No job of these queues is due. The first one, job %(id)d of queue %(queue)s, is due in %(time)s."
            )
            (one,) = note_zone([due_later(job, now, text, {})], job, using)
            yield Finding(one, Rank.LATER, {*self.waiting}, self.waiting.total(), self.capped)


def read_delays(spots: Sequence[Spot], using: str) -> Delays:
    """What is delayed in the queues of `spots`. One statement for each hundred priorities in use."""
    with_due = {spot.queue for spot in spots if spot.due}
    places = [spot for spot in spots if spot.gate == 0]
    levels = [level._asdict() for spot in places for level in spot.levels][:NEXT_LEVELS_MAX]
    delays, parked = Delays(), dict[tuple[str, str | None], Group]()
    for job_id, queue, task, wait_reason in next_of_level(using, NEXT_MAX).seek_each(levels):
        if is_parked(wait_reason):
            parked.setdefault((queue, task), Group({queue}, 0, job_id)).jobs += 1
        elif queue not in with_due:
            delays.waiting[queue] += 1
    delays.parked = [*parked.values()]
    delays.capped = len(levels) == NEXT_LEVELS_MAX or any(number >= NEXT_MAX for number in delays.waiting.values())
    quiet = [spot.delayed for spot in places if spot.delayed and spot.queue in delays.waiting]
    delays.next = min(quiet, default=None)
    return delays


def waiters(spots: Sequence[Spot], using: str) -> list[Group]:
    """The due jobs of spots at the gate of limits, by what they wait for. At most three statements.

    The number is that of all jobs that wait for the subject, whatever their queue. One that the table of waiting jobs
    does not have is counted among those that were read.
    """
    levels = [level._asdict() for spot in spots for level in spot.due_levels][:SAMPLE_LEVELS_MAX]
    read: dict[tuple[str, str | None], Group] = {}
    for job_id, queue, _, _, wait_reason in first_due_of_level(using, SAMPLE_MAX).seek_each(levels):
        read.setdefault((queue, wait_reason), Group({queue}, 0, job_id)).jobs += 1
    most = sorted(read.values(), key=lambda one: -one.jobs)[:SUBJECTS_MAX]
    rows = GateWait.objects.using(using).filter(pk__in=[one.first for one in most])
    subjects = dict(rows.values_list("pk", "subject")) if most else {}
    found: dict[int, Group] = {}
    for one in most:
        # A job without a subject counts under its negative id: ids of subjects are above 0.
        kept = found.setdefault(subjects.get(one.first, -one.first), one)
        kept.queues |= one.queues
    _count([*subjects.values()], found, using)
    return [*found.values()]


def _count(subjects: Sequence[int], found: dict[int, Group], using: str) -> None:
    if not subjects:
        return
    most = min(COUNT_MAX, max(COUNT_LEAST, ENTRIES_MAX // len(subjects)))
    for subject in {*subjects}:
        found[subject].jobs = 0
    for (subject,) in _waiting(using, most).seek_each([{"subject": subject} for subject in {*subjects}]):
        found[subject].jobs += 1
    for subject in {*subjects}:
        found[subject].capped = found[subject].jobs >= most


@lru_cache(maxsize=64)
def _waiting(using: str, most: int) -> Prepared:
    rows = GateWait.objects.using(using).filter(subject=Slot("subject", GateWait._meta.get_field("subject")))
    # In the order of the index; else PostgreSQL may read the table.
    rows = rows.order_by("urgency", "run_at", "job_id")
    return prepare_rows(vendor(using).force_index(rows, "ix_gate_wait").values_list("subject")[:most])
