"""Adding many jobs of a task costs little more than adding many raw jobs."""

from __future__ import annotations

import time
from statistics import median

import pytest

from jobqueue import enqueue_many
from jobqueue.models import Job
from tests.marks import committed
from tests.proofs.schedules.tasks import brief
from tests.purge import wait_for_purge

pytestmark = [committed, pytest.mark.timeout(1800)]


def per_second(add, jobs):
    Job.objects.all().delete()
    wait_for_purge()
    begun = time.perf_counter()
    add()
    return jobs / (time.perf_counter() - begun)


def test_bulk_of_tasks_keeps_most_of_the_rate_of_bulk_of_raw_jobs(full, figure):
    """task.enqueue_many() and enqueue_many() of as many jobs with the same payload, in turn: jobs per second."""
    jobs, pairs = (20_000, 15) if full else (500, 2)
    raw = lambda: enqueue_many("default", [{"args": [n], "kwargs": {}} for n in range(jobs)])  # noqa: E731
    of_tasks = lambda: brief.enqueue_many([(n,) for n in range(jobs)])  # noqa: E731
    per_second(raw, jobs)
    found = [(per_second(raw, jobs), per_second(of_tasks, jobs)) for _ in range(pairs)]
    share = median(tasks / plain for plain, tasks in found)
    assert share >= (0.6 if full else 0.02), found
    figure("raw jobs /s", round(median(plain for plain, _ in found)))
    figure("jobs of a task /s", round(median(tasks for _, tasks in found)))
    figure("share", round(share, 2))
