"""Each reason why jobs do not run is found first, among 300,000 jobs, in less than a second."""

from __future__ import annotations

import signal
import time

import pytest
from django.db import connection

from jobqueue import task
from jobqueue.explain import explain_backlog, explain_job, explain_queue
from jobqueue.explain.explanation import CODES
from jobqueue.models import Gate, Job, JobGroup, Worker
from jobqueue.models.flow import FlowRule
from tests.app import tasks
from tests.explain.helpers import checked, codes
from tests.factories import now
from tests.gates import jobs
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.process.conftest import start  # noqa: F401
from tests.process.harness import LONG
from tests.proofs.operations.crowded import crowded
from tests.proofs.operations.provoked import LAST, NOT_IN_SQLITE, OF_ALL, OF_BACKLOG, OF_QUEUES, PROVOKED, QUEUE, Stage
from tests.settings import VENDOR

MEASURES_ROUND_TRIPS = True
pytestmark = [committed, pytest.mark.timeout(3600)]
#: reasons of jobs with which all is well
HEALTHY = {"running", "ended", "workers_busy"}


@pytest.fixture
def stage(start, own_registry, tmp_path):  # noqa: F811
    def limited(**fields):
        return task(queue_name=QUEUE, **fields)(jobs.work)

    return Stage(start, tmp_path, limited)


def living():
    """A worker that serves all queues and has free threads, as far as its row tells."""
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "concurrency": 200, "version": "1"}
    # So long that the monitors of real workers do not take it for dead.
    beats = {"heartbeat_at": now(), "heartbeat_seconds": 3600}
    Worker.objects.update_or_create(name="crowd", defaults={"queues": "*", **plain, **beats})


def clear():
    """Delete what a scenario has left, and keep the crowd."""
    Job.objects.filter(queue=QUEUE).delete()
    Worker.objects.exclude(name="crowd").delete()
    for model in (FlowRule, Gate, JobGroup):
        model.objects.all().delete()


def timed(explain, *subject):
    """(explanations, milliseconds)"""
    connection.ensure_connection()
    begun = time.perf_counter()
    found = explain(*subject)
    return checked(found), 1000 * (time.perf_counter() - begun)


def test_each_reason_is_found_first_among_a_million_jobs(stage, full, row):
    """Each code is provoked among other jobs in 300 queues: its place among the answers, and ms of each answer."""
    count, queues = (300_000, 300) if full else (3000, 30)
    provoked = [code for code in PROVOKED if not (VENDOR == "sqlite" and code in NOT_IN_SQLITE)]
    assert set(PROVOKED) == set(CODES)
    with crowded(count, queues):
        for code in provoked:
            living()
            with PROVOKED[code](stage) as job_id:
                of_job, job_ms = timed(explain_job, job_id)
                of_queue, queue_ms = timed(explain_queue, QUEUE)
                backlog, backlog_ms = timed(explain_backlog)
            subject = backlog if code in OF_BACKLOG else of_queue if code in OF_QUEUES else of_job
            place = -1 if code in LAST else 0
            assert codes(subject)[place] == code, (code, codes(subject))
            assert code not in OF_ALL or codes(backlog)[0] == code, (code, codes(backlog))
            limit = 1000 if full else patient(1) * 1000
            assert max(job_ms, queue_ms, backlog_ms) < limit, (code, job_ms, queue_ms, backlog_ms)
            row(
                code=code,
                place=codes(subject).index(code) + 1,
                of=len(subject),
                job_ms=round(job_ms),
                queue_ms=round(queue_ms),
                backlog_ms=round(backlog_ms),
            )
            clear()


def test_healthy_jobs_have_no_other_reasons(start, full, figure, tmp_path):  # noqa: F811
    """1,000 jobs with which nothing is wrong, explained while they wait, run and end: no reason says otherwise."""
    count = 1000 if full else 60
    gate = tmp_path / "gate"
    ids = [int(result.id) for result in tasks.gated.enqueue_many([(str(gate),)] * 8)]
    ids += [int(result.id) for result in tasks.add.enqueue_many([(n, 1) for n in range(count - 8)])]
    group = start("runworker", *LONG, "--concurrency", 4)
    wait_until(lambda: Job.objects.filter(status=Job.Status.PROCESSING).count() >= 4, what="the claims")
    wait_until(lambda: Worker.objects.filter(stopped_at=None).exists(), what="the row of the worker")
    seen, moments = set(), 0
    for step in (lambda: None, gate.touch, ended):
        step()
        for job_id in ids:
            seen |= {one.code for one in explain_job(job_id)}
            moments += 1
        seen |= {one.code for one in explain_queue("default") + explain_backlog()}
    group.signal_all(signal.SIGKILL)
    assert seen <= HEALTHY, seen - HEALTHY
    figure("explanations", f"{moments:,}")
    figure("reasons that were found", ", ".join(sorted(seen)))
    figure("false reasons", 0)


def ended():
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of all jobs")
