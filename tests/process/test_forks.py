"""Jobs that fork: the second process does nothing in the worker's name and leaves the worker's sessions alone."""

import pytest

from jobqueue.models import Job
from tests.app import tasks
from tests.factories import enqueue_times, job
from tests.marks import committed
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = committed


@pytest.mark.parametrize("how", ["exits", "returns", "raises"])
def test_a_fork_that_comes_to_its_end_runs_none_of_the_waiting_jobs(worker, evidence, how):
    # Jobs of some length before it, so that more of them are claimed ahead and wait in memory when it forks.
    enqueue_times(20, tasks.work, 0.01)
    forking = tasks.forks.enqueue(how).id
    ids = [tasks.add.enqueue(n, 0).id for n in range(30)]
    group = worker("--drain", "--concurrency", 1)
    assert group.wait() == 0, group.text()
    wait_until(lambda: not group.members(), what="the end of the fork")
    assert sorted(line[2] for line in evidence.read("effect")) == sorted(ids)
    assert [line[2] for line in evidence.read("start")] == [forking]
    assert set(Job.objects.values_list("status", "attempts")) == {(Job.Status.DONE, 0)}


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite must not be used in a fork of a process that uses it")
def test_a_fork_leaves_the_sessions_of_the_worker_alone(worker):
    ids = [tasks.forks_inside_a_transaction.enqueue().id for _ in range(4)]
    group = worker("--drain")
    assert group.wait() == 0
    assert [job(job_id).result for job_id in ids] == [3] * 4
    assert "the database is unreachable" not in group.text()


def test_a_fork_that_comes_back_does_not_lift_the_hard_limit_of_its_job(worker, evidence):
    job_id = tasks.forks_and_hangs.enqueue().id
    group = worker("--concurrency", 1)
    wait_until(lambda: job(job_id).status == Job.Status.FAILED, what="its end by the hard limit")
    assert "hard_timeout_seconds" in job(job_id).last_error
    assert len(evidence.read("start")) == 1
    assert group.members()


def test_a_job_can_terminate_a_process_that_it_has_started(worker):
    job_id = tasks.terminates_its_own_process.enqueue().id
    assert worker("--drain").wait() == 0
    assert job(job_id).result == -15
