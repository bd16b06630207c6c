"""A group of 300,000 jobs ends once, holds nobody up, and costs little."""

from __future__ import annotations

import time
from datetime import timedelta
from statistics import median

import pytest
from django.db.models import Max, Min

from jobqueue import group, groups
from jobqueue.models import GroupMember, Job, JobGroup
from tests.marks import committed
from tests.patience import patient
from tests.proofs.running import unended, wait_for
from tests.proofs.schedules import rows, tasks
from tests.proofs.schedules.long_transactions import LongTransactions
from tests.purge import wait_for_purge

pytestmark = [committed, pytest.mark.timeout(7200)]
OPTIONS = ("--processes", "2", "--concurrency", "4", "--lease", "60s")
CALLBACKS = {"on_success": tasks.succeeded, "on_failure": tasks.failed, "on_done": tasks.done}


def make(jobs):
    with group("big", chunk_size=1000, **CALLBACKS) as big:
        big.add_many(tasks.brief, ((0,) for _ in range(jobs)))
    return big.id


def ended(number):
    return groups.get(number).state == "ended"


def callbacks():
    """The callbacks of all groups, in order."""
    names = Job.objects.exclude(task=rows.TASK).order_by("pk").values_list("task", flat=True)
    return [name.rpartition(".")[2] for name in names]


def test_a_group_of_a_million_jobs_ends_once(run_worker, full, figure):
    """2 workers of 2 processes; members are added by the thousand while others run."""
    jobs = rows.wanted(300_000 if full else 2_000)
    crowd = [run_worker(*OPTIONS) for _ in range(2 if full else 1)]
    with LongTransactions() as transactions:
        begun = time.monotonic()
        number = make(jobs)
        added = time.monotonic()
        # The state alone: the counts of a group that has not ended are read from all of its members.
        row = JobGroup.objects.filter(pk=number, state=JobGroup.State.ENDED)
        wait_for(row.exists, 7000, lambda: unended(crowd))
        over = time.monotonic()
        wait_for(lambda: not unfinished(), 60, lambda: unended(crowd))
    found = groups.get(number)
    assert (found.total, found.done, found.failed) == (jobs, jobs, 0)
    assert callbacks() == ["succeeded", "done"]
    assert transactions.longest_seconds < (1 if full else patient(1))
    assert [worker.stop() for worker in crowd] == [0] * len(crowd)
    figure("members", f"{jobs:,}")
    figure("seconds to add them", round(added - begun))
    figure("seconds until the group has ended", round(over - begun))
    figure("on_success, on_failure, on_done enqueued", "1, 0, 1")
    figure("longest transaction in s", round(transactions.longest_seconds, 2))


def unfinished():
    return any(Job.objects.filter(status=status).exists() for status in (Job.Status.READY, Job.Status.PROCESSING))


def per_second(run_worker, jobs, *, in_group):
    """Jobs that end in a second, from the first claim to the last end, by the clock of the server."""
    for model in (Job, GroupMember, JobGroup):
        model.objects.all().delete()
    wait_for_purge()
    if in_group:
        make(jobs)
    else:
        tasks.brief.enqueue_many([(0,)] * jobs)
    crowd = [run_worker(*OPTIONS) for _ in range(2)]
    wait_for(lambda: not unfinished(), 600, lambda: unended(crowd))
    assert [worker.stop() for worker in crowd] == [0, 0]
    mine = Job.objects.filter(task=rows.TASK)
    first, last = mine.aggregate(a=Min("last_started_at"), b=Max("finished_at")).values()
    return jobs / ((last - first) / timedelta(seconds=1))


def test_members_end_at_a_rate_near_that_of_other_jobs(run_worker, full, figure):
    """Jobs without work, in a group and without one, in turn: jobs per second."""
    jobs, pairs = (20_000, 5) if full else (300, 1)
    found = [[per_second(run_worker, jobs, in_group=one) for one in (False, True)] for _ in range(pairs)]
    share = median(members / others for others, members in found)
    # The short form only shows that it runs.
    assert share >= (0.7 if full else 0.02), found
    figure("without a group /s", round(median(others for others, _ in found)))
    figure("members /s", round(median(members for _, members in found)))
    figure("share", round(share, 2))
