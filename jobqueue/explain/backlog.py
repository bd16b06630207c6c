"""explain_backlog(): why the due jobs of the whole database do not start, the cause of most of them first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.explain.controls import pause_of_queue
from jobqueue.explain.crews import Crews
from jobqueue.explain.delayed import Delays, read_delays
from jobqueue.explain.explanation import Explanation
from jobqueue.explain.findings import Findings, Rank
from jobqueue.explain.idle import nothing_waits
from jobqueue.explain.in_short import backlog_in_short
from jobqueue.explain.jobs import reasons_of
from jobqueue.explain.limits import limits_of_whole_queue
from jobqueue.explain.monitors import late_schedules, monitor_dead
from jobqueue.explain.reading import Place, ReadJob, read_jobs, read_places
from jobqueue.explain.ready_jobs import first_due_of_level
from jobqueue.explain.refusals import read_only
from jobqueue.explain.slowness import Stopwatch
from jobqueue.explain.states import held
from jobqueue.explain.subjects import SAMPLE_MAX, Waiters, waiters
from jobqueue.explain.survey import Spot, Survey, survey
from jobqueue.explain.waits_in_words import full
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE

#: pairs of queue and gate whose first job is looked at, those with the most due jobs; and how many of each gate
SPOTS_MAX, SPOTS_OF_GATE = 50, 10


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
