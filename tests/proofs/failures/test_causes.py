"""Real exceptions in real jobs: each has a cause."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict

import pytest

from jobqueue import enqueue
from jobqueue.models import Job, JobAttempt
from tests.factories import make_jobs
from tests.failures.server import surroundings
from tests.marks import committed
from tests.proofs.running import unended, wait_for

pytestmark = [committed, pytest.mark.timeout(600)]

#: of the operations guide: what happened -> a real exception, and its cause
GUIDE = {
    "an outside service is down": ("requests: the port refuses", "dependency"),
    "an outside service answers 503": ("requests: HTTP 503", "dependency"),
    "the data is missing": ("Django: a row that is not there", "data"),
    "the order was cancelled: HTTP 410": ("requests: HTTP 410", "data"),
    "a lock wait": ("SQL: a lock wait, or a busy file of SQLite", "resource"),
    "an empty pool": ("urllib3: all connections of a pool in use", "resource"),
}


def formats(jobs):
    """Messages of another format, and a limit of our own: how -> (the id of its job, its cause)."""
    path = jobs.takes_one_argument.module_path
    return {
        "the message has another argument": (raw(path, {"args": [], "kwargs": {"customer": 1}}), "format"),
        "the message has an argument too many": (raw(path, {"args": [1, 2], "kwargs": {}}), "format"),
        "the message has no arguments at all": (raw(path, [1]), "format"),
        "the payload lacks a key": (enqueue("failures-orders", {"n": 1}, max_attempts=1), "format"),
        "a result that is no JSON": (int(jobs.returns_no_json.enqueue().id), "format"),
        "a job beyond its timeout_seconds": (int(jobs.takes_too_long.enqueue().id), "timeout"),
    }


def raw(task, payload):
    """A job of a task, as a program that speaks SQL writes it."""
    job_id = enqueue("default", payload, max_attempts=1)
    Job.objects.filter(pk=job_id).update(task=task)
    return job_id


def carried_out(run_worker, ids):
    """(class of the exception, cause) of each job, from its row and its history, after a worker has run all."""
    # One after the other: two of the calls use up what others need.
    worker = run_worker("--concurrency", "1", "--lease", "60s", "--queues=-spare")
    left = Job.objects.filter(pk__in=ids, status__in=(Job.Status.READY, Job.Status.PROCESSING))
    wait_for(lambda: not left.exists(), 300, lambda: unended([worker]))
    assert worker.stop() == 0
    classes = dict(JobAttempt.objects.filter(job_id__in=ids).values_list("job_id", "error_class"))
    causes = dict(Job.objects.filter(pk__in=ids, status=Job.Status.FAILED).values_list("pk", "cause"))
    kept = dict(JobAttempt.objects.filter(job_id__in=ids).values_list("job_id", "cause"))
    assert causes == kept, "the history says the same"
    return {job_id: (classes[job_id], causes[job_id]) for job_id in ids}


def test_each_of_many_real_exceptions_has_a_cause(run_worker, jobs, full, row, figure):
    """Real exceptions, each raised by a job of a worker: the class that its history has, and the cause of the job."""
    make_jobs(2, "spare")
    names = list(jobs.REAL) if full else list(jobs.REAL)[::3]
    with surroundings() as world:
        place = {key: value for key, value in asdict(world).items() if key != "job_id"}
        ids = {int(jobs.raises.enqueue(how, place).id): (how, jobs.REAL[how].cause) for how in names}
        ids |= {job_id: (how, cause) for how, (job_id, cause) in formats(jobs).items()}
        found = carried_out(run_worker, ids)
    wrong = {how: found[job_id] for job_id, (how, cause) in ids.items() if found[job_id][1] != cause}
    assert wrong == {}
    assert "unknown" not in {cause for _, cause in found.values()}
    assert len(found) >= 60
    rows = defaultdict(list)
    for job_id, (how, _) in ids.items():
        rows[found[job_id]].append(how)
    for (kind, cause), hows in sorted(rows.items()):
        row(exception=f"`{kind}`", cause=cause, times=len(hows), raised_by="; ".join(hows))
    figure("exceptions", len(found))
    figure("classes", len({kind for kind, _ in found.values()}))
    figure("with the cause unknown", sum(cause == "unknown" for _, cause in found.values()))


def test_the_examples_of_the_operations_guide_have_its_four_causes(run_worker, jobs, row):
    """The four causes of the operations guide with its examples, each in a job of a worker."""
    make_jobs(2, "spare")
    with surroundings() as world:
        place = {key: value for key, value in asdict(world).items() if key != "job_id"}
        ids = {int(jobs.raises.enqueue(how, place).id): (what, cause) for what, (how, cause) in GUIDE.items()}
        ids |= {job_id: (how, cause) for how, (job_id, cause) in formats(jobs).items() if cause == "format"}
        found = carried_out(run_worker, ids)
    for job_id, (what, cause) in ids.items():
        assert found[job_id][1] == cause, what
        row(example=what, exception=f"`{found[job_id][0]}`", cause=cause)
