"""explain_backlog(): why the due jobs of the whole database do not start, the cause of most of them first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache

from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.db.expressions import Slot, Unestimated
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.explain.controls import pause_of_queue
from jobqueue.explain.crews import Crews
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list, iso, seconds_until, span
from jobqueue.explain.findings import QUEUES_SHOWN, Findings, Rank, counted, queue_list
from jobqueue.explain.in_short import backlog_in_short
from jobqueue.explain.jobs import reasons_of
from jobqueue.explain.limits import limits_of_whole_queue
from jobqueue.explain.monitors import late_schedules, monitor_dead
from jobqueue.explain.reading import Place, ReadJob, read_jobs, read_places
from jobqueue.explain.ready_jobs import first_due_of_level, next_of_level
from jobqueue.explain.refusals import read_only
from jobqueue.explain.slowness import Stopwatch
from jobqueue.explain.states import held, is_parked, not_due
from jobqueue.explain.survey import COUNT_LEAST, COUNT_MAX, ENTRIES_MAX, Delayed, Spot, Survey, survey
from jobqueue.explain.waits import full
from jobqueue.explain.zones import note_zone
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import GateWait, Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.payload import JSON

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
        if watch.is_short_of_time:
            return backlog_in_short(alias, watch)
        seen = survey(now, alias)
        findings = Findings(cut=seen.cut or sum(spot.due > 0 for spot in seen.spots) > SPOTS_MAX)
        crews = Crews(alias)
        if seen.spots:
            _Look(seen, findings, crews, alias).run()
        else:
            crews.tell(findings)
        watch.note_commits(crews.commits())
        _slow(watch, seen, findings)
        due = [spot for spot in seen.spots if spot.due]
        for one in read_only(alias):
            jobs, queues = sum(spot.due for spot in due), {spot.queue for spot in due}
            findings.add(one, queues, jobs, capped=any(spot.capped for spot in due), rank=Rank.STOPS_ALL)
        monitor_dead(findings, alias)
        late_schedules(findings, alias)
        for one in full(alias):
            findings.add(one, (), 0)
        return (findings.told() or _idle(seen.cut, crews, alias)) + crews.skew()


def _idle(cut: bool, crews: Crews, using: str) -> list[Explanation]:
    """Explain a database in which no job waits: what the running jobs wait for."""
    found = nothing_waits(cut, using)
    return (crews.waits() if found[0].code == "running" else []) + found


def _chosen(due: Sequence[Spot]) -> list[Spot]:
    """The spots to look at, some of each gate: most jobs wait at no gate, and would crowd out the others."""
    of_gate, first, others = Counter[int](), list[Spot](), list[Spot]()
    for spot in due:
        of_gate[spot.gate] += 1
        (first if of_gate[spot.gate] <= SPOTS_OF_GATE else others).append(spot)
    return [*first, *others][:SPOTS_MAX]


def _slow(watch: Stopwatch, seen: Survey, findings: Findings) -> None:
    """Add database_slow for all due jobs. One statement if a job is due."""
    due = [spot for spot in seen.spots if spot.due and spot.gate == 0]
    if due:
        watch.claim(due[0].queue, due[0].due_levels[0].level)
    for one in watch.told():
        jobs, queues = sum(spot.due for spot in due), {spot.queue for spot in due}
        findings.add(one, queues, jobs, capped=any(spot.capped for spot in due))


@dataclass(slots=True)
class _Read:
    """The rows that the explanations are made of."""

    places: dict[str, Place]
    jobs: dict[int, ReadJob]
    waiters: list[Waiters]
    delays: Delays


class _Look:
    """One look at the queues of a survey."""

    def __init__(self, seen: Survey, findings: Findings, crews: Crews, using: str) -> None:
        self._seen, self._findings, self._crews, self._using = seen, findings, crews, using
        self._due = _chosen([spot for spot in seen.spots if spot.due])
        self._read = self._rows()

    def run(self) -> None:
        """Add all that is found to the findings."""
        stopped = {*self._whole_queues()}
        for spot in self._due:
            job = self._job(spot.first_due)
            if job is None:
                continue
            if spot.gate == 0 and spot.queue not in stopped:
                self._free(spot, job)
            elif spot.gate not in (0, FLOW_GATE):
                self._gated(spot, job)
        for group in self._read.waiters:
            job = self._job(group.first)
            for one in [] if job is None else reasons_of(job, self._read.places[job.queue]):
                self._add(one, group.queues, group.jobs, capped=group.capped)
        self._read.delays.tell(self._findings, self._read.jobs, self._seen.now, self._using)
        self._crews.tell(self._findings)

    def _rows(self) -> _Read:
        groups = waiters([spot for spot in self._due if spot.gate == FLOW_GATE], self._using)
        delays = read_delays(self._seen.spots, self._using)
        wanted = [spot.first_due for spot in self._due] + [one.first for one in groups] + delays.firsts
        jobs = {job.pk: job for job in read_jobs(wanted, self._using)} if wanted else {}
        queues = {spot.queue for spot in self._seen.spots} | {job.queue for job in jobs.values()}
        return _Read(read_places(sorted(queues), self._seen.now, self._using), jobs, groups, delays)

    def _job(self, job_id: int) -> ReadJob | None:
        """A job of the survey, if it still waits."""
        job = self._read.jobs.get(job_id)
        return job if job is not None and job.status == Job.Status.READY else None

    def _whole_queues(self) -> Iterator[str]:
        """The queues of which nothing starts, whatever else the jobs wait for: paused, or without a worker."""
        waiting: dict[str, tuple[int, bool]] = {}
        for spot in self._seen.spots:
            if spot.due and spot.gate not in (HELD_GATE, PARENTS_GATE):
                jobs, capped = waiting.get(spot.queue, (0, False))
                waiting[spot.queue] = (jobs + spot.due, capped or spot.capped)
        for queue, (jobs, capped) in waiting.items():
            pauses, served = pause_of_queue(self._read.places[queue]), self._crews.serve(queue)
            for one in pauses:
                self._add(one, [queue], jobs, capped=capped)
            if not served:
                self._crews.without_worker(queue, jobs, capped=capped)
            if pauses or not served:
                yield queue

    def _free(self, spot: Spot, job: ReadJob) -> None:
        """Due jobs at no gate, in a queue that is served: limits of the queue, then what the first one itself meets."""
        place = self._read.places[spot.queue]
        limits = limits_of_whole_queue(place)
        for one in limits:
            self._add(one, [spot.queue], spot.due, capped=spot.capped)
        if limits:
            return
        # A claim would put the first one behind a gate, and go on with jobs of other tasks.
        own = reasons_of(job, place)
        alike = self._alike(spot, job) if own else 0
        for one in own:
            self._add(one, [spot.queue], alike, capped=alike >= SAMPLE_MAX)
        if spot.due > alike:
            self._crews.free(spot.queue, spot.due - alike, capped=spot.capped)

    def _alike(self, spot: Spot, job: ReadJob) -> int:
        """How many of the next due jobs are of the same task."""
        rows = first_due_of_level(self._using, SAMPLE_MAX).rows(**spot.due_levels[0]._asdict())
        return max(1, len([1 for _, _, _, task, _ in rows if task == job.task]))

    def _gated(self, spot: Spot, job: ReadJob) -> None:
        """Due jobs that wait for their key or their parents, or are held."""
        reasons = held(job) if spot.gate == HELD_GATE else reasons_of(job, self._read.places[spot.queue])
        for one in reasons:
            self._add(one, [spot.queue], spot.due, capped=spot.capped)

    def _add(self, one: Explanation, queues: Sequence[str] | set[str], jobs: int, *, capped: bool) -> None:
        # Workflows that go on have such nodes, and workers open gates at which nothing holds a job.
        moves = (one.code == "parents" and not one.evidence.get("held")) or "gate" in one.evidence
        rank = Rank.MOVES if moves else Rank.HOLDS_UP
        self._findings.add(one, queues, jobs, capped=capped, rank=rank)


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
class _Parked:
    first: int
    queue: str
    jobs: int = 0


@dataclass(slots=True)
class Delays:
    """Jobs at no gate whose time has not come."""

    parked: list[_Parked] = field(default_factory=list)
    next: Delayed | None = None  # the one that is due first, of the queues without due jobs
    waiting: Counter[str] = field(default_factory=Counter)  # jobs that were read in these queues
    capped: bool = False

    @property
    def firsts(self) -> list[int]:
        """The ids of the jobs whose rows tell() needs."""
        return [one.first for one in self.parked] + ([self.next.job_id] if self.next else [])

    def tell(self, findings: Findings, jobs: Mapping[int, ReadJob], now: datetime, using: str) -> None:
        """Add unknown_task for each queue and task, and one not_due for all queues in which no job is due.

        One statement at most.
        """
        for parked in self.parked:
            job = jobs.get(parked.first)
            for one in [] if job is None else not_due(job):
                if one.code == "unknown_task":
                    findings.add(one, [parked.queue], parked.jobs, capped=parked.jobs >= NEXT_MAX)
        job = jobs.get(self.next.job_id) if self.next else None
        if job is not None and self.waiting:
            (one,) = note_zone([_nothing_due(job, now)], job, using)
            total = self.waiting.total()
            findings.add(one, [*self.waiting], total, capped=self.capped, rank=Rank.LATER)


def read_delays(spots: Sequence[Spot], using: str) -> Delays:
    """What is delayed in the queues of `spots`. One statement for each hundred priorities in use."""
    with_due = {spot.queue for spot in spots if spot.due}
    places = [spot for spot in spots if spot.gate == 0]
    levels = [level._asdict() for spot in places for level in spot.levels][:NEXT_LEVELS_MAX]
    delays, parked = Delays(), dict[tuple[str, str | None], _Parked]()
    for job_id, queue, task, wait_reason in next_of_level(using, NEXT_MAX).seek_each(levels):
        if is_parked(wait_reason):
            parked.setdefault((queue, task), _Parked(job_id, queue)).jobs += 1
        elif queue not in with_due:
            delays.waiting[queue] += 1
    delays.parked = [*parked.values()]
    delays.capped = len(levels) == NEXT_LEVELS_MAX or any(number >= NEXT_MAX for number in delays.waiting.values())
    quiet = [spot.delayed for spot in places if spot.delayed and spot.queue in delays.waiting]
    delays.next = min(quiet, default=None)
    return delays


def _nothing_due(job: ReadJob, now: datetime) -> Explanation:
    seconds = seconds_until(job.run_at, now)
    text = gettext("No job of these queues is due. The first one, job %(id)d of queue %(queue)s, is due in %(time)s.")
    facts = {"id": job.pk, "queue": job.queue, "time": span(seconds)}
    evidence: dict[str, JSON] = {"job_id": job.pk, "run_at": iso(job.run_at), "seconds": seconds}
    evidence["wait_reason"] = job.wait_reason
    step = gettext("Wait, or let it run now (jobs retry %(id)d).")
    return Explanation("not_due", text % facts, evidence, step % facts)


@dataclass(slots=True)
class Waiters:
    """Jobs that wait for the same subject: how many, and the first one of them that was read."""

    first: int
    queues: set[str]
    jobs: int
    capped: bool = False


def waiters(spots: Sequence[Spot], using: str) -> list[Waiters]:
    """The due jobs of spots at the gate of limits, by what they wait for. At most three statements.

    The number is that of all jobs that wait for the subject, whatever their queue. One that the table of waiting jobs
    does not have is counted among those that were read.
    """
    levels = [level._asdict() for spot in spots for level in spot.due_levels][:SAMPLE_LEVELS_MAX]
    read: dict[tuple[str, str | None], Waiters] = {}
    for job_id, queue, _, _, wait_reason in first_due_of_level(using, SAMPLE_MAX).seek_each(levels):
        read.setdefault((queue, wait_reason), Waiters(job_id, {queue}, 0)).jobs += 1
    most = sorted(read.values(), key=lambda one: -one.jobs)[:SUBJECTS_MAX]
    rows = GateWait.objects.using(using).filter(pk__in=[one.first for one in most])
    subjects = dict(rows.values_list("pk", "subject")) if most else {}
    found: dict[int, Waiters] = {}
    for one in most:
        # A job without a subject counts under its negative id: ids of subjects are above 0.
        kept = found.setdefault(subjects.get(one.first, -one.first), one)
        kept.queues |= one.queues
    _count([*subjects.values()], found, using)
    return [*found.values()]


def _count(subjects: Sequence[int], found: dict[int, Waiters], using: str) -> None:
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
