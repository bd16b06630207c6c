"""not_due and unknown_task of many queues: what comes next where no job is due, and what workers have put back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.utils.translation import gettext

from jobqueue.explain.explanation import Explanation, iso, seconds_until, span
from jobqueue.explain.findings import Findings, Rank
from jobqueue.explain.reading import ReadJob
from jobqueue.explain.ready_jobs import next_of_level
from jobqueue.explain.states import is_parked, not_due
from jobqueue.explain.survey import Delayed, Spot
from jobqueue.explain.zones import note_zone
from jobqueue.payload import JSON

#: the jobs of a queue and priority that are due next and are read, and the priorities in all that are looked at.
#: Parked jobs come back within about a minute, so they are among the next ones.
NEXT_MAX, LEVELS_MAX = 50, 100


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
    levels = [level._asdict() for spot in places for level in spot.levels][:LEVELS_MAX]
    delays, parked = Delays(), dict[tuple[str, str | None], _Parked]()
    for job_id, queue, task, wait_reason in next_of_level(using, NEXT_MAX).seek_each(levels):
        if is_parked(wait_reason):
            parked.setdefault((queue, task), _Parked(job_id, queue)).jobs += 1
        elif queue not in with_due:
            delays.waiting[queue] += 1
    delays.parked = [*parked.values()]
    delays.capped = len(levels) == LEVELS_MAX or any(number >= NEXT_MAX for number in delays.waiting.values())
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
