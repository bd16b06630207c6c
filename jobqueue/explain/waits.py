"""connection, outside_service, row_lock and hanging: what the threads of workers wait for, as they have told it.

Only for workers that were asked a moment ago: the functions of this room write nothing, so they do not ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from django.db.models import Sum

from jobqueue.db.clock import Selected, UtcNow
from jobqueue.explain.explanation import Explanation
from jobqueue.explain.reports import Report, Standing, reports
from jobqueue.explain.wait_groups import Group, Runner
from jobqueue.explain.waiting_for import calling_line, runs_statement, wait_of
from jobqueue.explain.waits_in_words import connection, hanging, outside_service, own_lock, unreachable
from jobqueue.models import Job, JobStatTotal

#: a job that has run for less is not said to wait for a service
SERVICE_SECONDS = 2.0
#: one that hangs has run for so long, and for so many times the mean of its task; without any statistics, for longer
HANG_SECONDS, HANG_TIMES, HANG_UNKNOWN_SECONDS = 60.0, 10.0, 600.0
#: jobs whose rows are read
JOBS_MAX = 200


def waits_of_workers(names: Sequence[str], using: str, *, job_id: int | None = None) -> list[Explanation]:
    """What the threads of these workers wait for, those of most jobs first; with `job_id`, of that job alone.

    One statement; three or four if one of the workers was asked a moment ago, and one more for each without an answer.
    """
    told = reports(sorted(names), using)
    if not told:
        return []
    runners = _runners(told, using, job_id)
    groups: dict[object, Group] = {}
    for report in told:
        for standing in report.standing:
            own = [runners[one] for one in standing.jobs.items() if one in runners]
            if own or (not standing.jobs and job_id is None):
                _note_wait(groups, report, standing, own, using)
    found = [_explained(group) for group in _by_size(groups)]
    cannot = [report for report in told if report.unreachable]
    return (unreachable(cannot, using) if cannot else []) + found + _hanging(told, runners, using)


def _note_wait(groups: dict[object, Group], report: Report, standing: Standing, own: list[Runner], using: str) -> None:
    wait = wait_of(standing, using) if standing.looks > 1 else None
    if wait is None:
        return
    if wait.kind in ("service", "lock"):
        own = [runner for runner in own if runner.seconds >= SERVICE_SECONDS]
        if not own:
            return
    # All waits for one database are one group, also those of threads that hold no job.
    key = (wait.kind, wait.name, wait.place) if wait.kind in ("service", "lock") else (wait.kind, wait.name)
    group = groups.setdefault(key, Group(standing, wait.place, wait, age_seconds=report.age_seconds))
    if own and not group.runners:
        group.standing, group.place = standing, wait.place
    group.runners += own
    group.threads += standing.threads
    group.workers.add(report.worker)


def _hanging(told: Sequence[Report], runners: dict[tuple[int, int], Runner], using: str) -> list[Explanation]:
    """The jobs that have run for far longer than usual, if nothing tells what they wait for."""
    standing_of = {
        one: (report, standing)
        for report in told
        for standing in report.standing
        if standing.looks > 1 and wait_of(standing, using) is None
        for one in standing.jobs.items()
    }
    silent = {report.worker: report for report in told if not report.answered}
    late = [
        runner
        for key, runner in runners.items()
        if runner.seconds >= HANG_SECONDS and (key in standing_of or runner.worker in silent)
    ]
    usual = _usual({runner.kind for runner in late}, using)
    groups: dict[object, Group] = {}
    for runner in late:
        mean = usual.get(runner.kind)
        if runner.seconds < (HANG_UNKNOWN_SECONDS if mean is None else HANG_TIMES * mean):
            continue
        report, standing = standing_of.get((runner.id, runner.fence), (None, None))
        report = report or silent[runner.worker or ""]
        place = calling_line(standing.stack) if standing is not None else ""
        group = groups.setdefault(
            (place, runner.kind), Group(standing, place, usual_seconds=mean, age_seconds=report.age_seconds)
        )
        group.runners.append(runner)
        group.workers.add(report.worker)
    return [hanging(group) for group in _by_size(groups)]


def _explained(group: Group) -> Explanation:
    kind = "" if group.wait is None else group.wait.kind
    return outside_service(group) if kind == "service" else own_lock(group) if kind == "lock" else connection(group)


def may_wait_for_row(worker: str, job_id: int, using: str) -> bool | None:
    """Whether the thread of this job is in a statement on the database; None: it has not told. One statement."""
    found = [one for report in reports([worker], using) for one in report.standing if job_id in one.jobs]
    return any(runs_statement(one, using) for one in found) if found else None


def _by_size(groups: dict[object, Group]) -> list[Group]:
    return sorted(groups.values(), key=lambda group: (-len(group.runners), -group.threads, group.place))


def _runners(told: Sequence[Report], using: str, job_id: int | None) -> dict[tuple[int, int], Runner]:
    """The rows of the jobs that workers have told, by id and fence: those that still run.

    One statement, and one for each worker that did not answer.
    """
    ids = {one for report in told for standing in report.standing for one in standing.jobs}
    wanted = Job.objects.using(using).filter(status=Job.Status.PROCESSING)
    silent = [report.worker for report in told if not report.answered]
    rows = [wanted.filter(pk__in=sorted(ids if job_id is None else {job_id})[:JOBS_MAX])]
    if job_id is None:
        # By equality: for a list of names MySQL may read the whole index.
        rows += [wanted.filter(locked_by=name) for name in silent]
    columns = ("pk", "fence", "locked_by", "queue", "task", Selected("locked_at"), Selected(UtcNow()))
    return {
        (runner.id, runner.fence): runner
        for found in rows
        for row in found.order_by().values_list(*columns)[:JOBS_MAX]
        for runner in _runner(*row)
    }


def _runner(
    number: int, fence: int, worker: str | None, queue: str, task: str | None, since: datetime | None, now: datetime
) -> Iterator[Runner]:
    # Plain SQL may have written a lease without a beginning.
    if since is not None:
        yield Runner(number, fence, worker, (queue, task or ""), (now - since).total_seconds())


def _usual(kinds: set[tuple[str, str]], using: str) -> dict[tuple[str, str], float]:
    """How long jobs of these queues and tasks run on average, in seconds, where some were counted."""
    if not kinds:
        return {}
    queues, tasks = {queue for queue, _ in kinds}, {task for _, task in kinds}
    rows = JobStatTotal.objects.using(using).filter(queue__in=queues, task__in=tasks, runs__gt=0)
    sums = rows.values("queue", "task").annotate(ran=Sum("runs"), took=Sum("run_us"))
    found = sums.order_by().values_list("queue", "task", "ran", "took")
    return {(queue, task): int(took) / int(ran) / 1e6 for queue, task, ran, took in found}
