"""Whether a worker serves the queue of a job that nothing else keeps from starting."""

from datetime import timedelta

import pytest
from django.test import override_settings

from jobqueue.explain import explain_backlog
from jobqueue.models import Worker
from tests.explain.helpers import checked, codes, first, of_job, of_queue
from tests.factories import claim_one, make_job, make_jobs, now
from tests.marks import finding

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


def test_without_a_worker_no_job_starts():
    one = first(of_job(make_job()), "no_worker")
    assert one.evidence == {"queue": "q", "living": 0, "serve": []}
    assert "runworker" in one.next_step


def test_workers_of_other_queues_are_told(worker):
    worker("w1", "mail, web:5")
    worker("w2", "*, -q")
    one = first(of_job(make_job()), "no_worker")
    assert one.evidence["living"] == 2
    assert one.evidence["serve"] == ["*, -q", "mail, web:5"]
    assert "mail, web:5" in one.text


@pytest.mark.parametrize("queues", ["*", "q", "mail, q:7", "-mail", "x" * 500 + "..." + "y" * 497, "a,,b"])
def test_a_worker_that_serves_the_queue_or_may_do_so_counts(worker, queues):
    worker(queues=queues)
    assert codes(of_job(make_job()))[0] == "workers_busy"


@override_settings(JOBQUEUE={"WORKER_SILENT_SECONDS": 30})
def test_a_worker_that_stopped_or_is_silent_does_not_count(worker):
    job_id = make_job()
    worker(heartbeat_seconds=10)
    assert codes(of_job(job_id))[0] == "workers_busy"
    Worker.objects.update(heartbeat_at=now() - 60 * SECOND)
    assert codes(of_job(job_id))[0] == "no_worker"
    Worker.objects.update(heartbeat_at=now(), stopped_at=now())
    assert codes(of_job(job_id))[0] == "no_worker"


def test_workers_with_a_job_for_each_thread_are_busy(worker):
    worker("w1")
    job_id = make_jobs(3)[-1]
    claim_one(worker="w1")
    one = first(of_job(job_id), "workers_busy")
    assert (one.evidence["leases"], one.evidence["threads"], one.evidence["full"]) == (1, 2, False)
    assert "Nothing holds back" in one.text
    claim_one(worker="w1")
    one = first(of_job(job_id), "workers_busy")
    assert one.evidence["full"] is True
    assert "busy" in one.text


def test_what_busy_workers_run_is_told_by_task(worker):
    worker("w1", concurrency=3)
    for task in ("app.slow", "app.slow", None):
        make_job(task=task)
    job_id = make_job()
    for _ in range(3):
        claim_one(worker="w1")
    one = first(of_job(job_id), "workers_busy")
    assert one.evidence["tasks"] == {"app.slow": 2, "@handler q": 1}
    assert "They run: app.slow (2), @handler q (1)." in one.text


def test_the_jobs_of_workers_of_other_queues_are_not_counted(worker):
    worker("w1", "q")
    worker("w2", "mail")
    make_job("mail")
    claim_one("mail", worker="w2")
    assert first(of_job(make_job()), "workers_busy").evidence["leases"] == 0


@finding("O-M5")
def test_a_worker_whose_process_has_just_crashed_is_no_missing_worker(worker):
    job_id = make_job()
    worker("h:1:child-1", stopped_at=now(), stop_reason="was killed by SIGKILL")
    for found in (of_job(job_id), of_queue(), checked(explain_backlog())):
        one = first(found, "no_worker")
        assert "Its command starts another one" in one.text
        assert "SIGKILL" in one.text
        assert "Start a worker" not in one.next_step
    Worker.objects.update(stopped_at=now() - timedelta(minutes=5))
    assert "runworker" in first(of_queue(), "no_worker").next_step
