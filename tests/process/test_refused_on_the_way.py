"""A worker behind a proxy that takes no long statements goes on with everything else."""

import os
import re
import signal

import pytest
from django.db import connection

from jobqueue.models import Job
from tests.app import tasks
from tests.factories import enqueue_times, job, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.proxy import CuttingProxy
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="nothing stands between SQLite and its file")]
LONGEST = 100_000


@pytest.fixture
def through():
    """What lets a worker go through such a proxy."""
    variable = f"JOBQUEUE_TEST_{VENDOR.upper()}_URL"
    settings = connection.settings_dict
    proxy = CuttingProxy(settings["HOST"], int(settings["PORT"]))
    proxy.longest = LONGEST
    yield {variable: re.sub(f"@[^/]*:{settings['PORT']}/", f"@127.0.0.1:{proxy.port}/", os.environ[variable])}
    proxy.close()


@finding("A12")
def test_a_worker_ends_what_it_can_store_and_goes_on(worker, through):
    enqueue_times(10, tasks.add, 1, 2)
    long = [int(tasks.add.enqueue("x" * 2 * LONGEST, "y").id) for _ in range(2)]
    enqueue_times(10, tasks.add, 3, 4)
    group = worker("--concurrency", 2, **through)
    wait_until(lambda: Job.objects.filter(status=Job.Status.DONE).count() == 20, what="the ends of the others")
    wait_until(lambda: {state(job_id) for job_id in long} == {"FAILED"}, what="their own ends")
    later = int(tasks.add.enqueue(5, 6).id)
    wait_until(lambda: state(later) == "DONE", what="the end of a later job")
    assert [(job(job_id).cause, job(job_id).attempts, job(job_id).fence) for job_id in long] == [("format", 1, 1)] * 2
    assert set(Job.objects.exclude(pk__in=long).values_list("attempts", flat=True)) == {0}
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
