"""Real workers write what ended, whoever ended it; one that is killed loses one write at most."""

import signal

import pytest

from jobqueue import enqueue_many
from jobqueue.models import Job, JobStat
from jobqueue.transitions import claim
from tests.app import tasks
from tests.factories import expire
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.stats.helpers import sums

pytestmark = committed


def ended():
    return not Job.objects.filter(status__in=(Job.Status.READY, Job.Status.PROCESSING)).exists()


def test_a_worker_that_leaves_has_written_how_its_jobs_ended(worker):
    for number in range(20):
        tasks.add.enqueue(number, 1)
    for _ in range(3):
        tasks.boom.using(max_attempts=1).enqueue()
    lost = enqueue_many("lost", [1])
    expire(*claim("lost", worker="elsewhere"))
    Job.objects.filter(pk__in=lost).update(max_attempts=1)
    group = worker("--processes", 2, "--concurrency", 2)
    wait_until(ended)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert sums() == (20, 0, 4, 0, 1)
    rows = JobStat.objects.filter(task="tests.app.tasks.add")
    assert sum(row.runs for row in rows) == 20
    assert sum(sum(row.run_times.values()) for row in rows) == 20
    assert all(row.wait_us_max >= 0 and row.run_us_max > 0 for row in rows)
    assert "statistics" not in group.text()


@finding("O-H3")
def test_the_monitor_counts_the_end_of_a_job_that_killed_its_process(worker):
    tasks.die.using(max_attempts=1).enqueue()
    group = worker("--processes", 1, "--concurrency", 1)
    wait_until(ended)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert sums() == (0, 0, 1, 0, 1)
    assert (
        "tests.app.tasks.die) was running when its process exited with status 9: try 1/1 is used, it is dead"
        in group.text()
    )


@pytest.mark.parametrize("option", ["--once", "--drain"])
def test_a_worker_that_ends_by_itself_has_written_too(worker, option):
    for _ in range(2):
        tasks.add.enqueue(1, 2)
    assert worker(option, "--processes", 1).wait() == 0
    assert sums()[0] == (1 if option == "--once" else 2)
