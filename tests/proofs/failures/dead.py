"""Makes many dead letters of one task, some of them with ordering keys."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from jobqueue.models import Job
from jobqueue.producer.enqueueing import add_many, new_job
from jobqueue.transitions import claim, fail, resume

QUEUE = "dead"
KEYS, CHUNK = 20, 5000
DOWN = ConnectionRefusedError("the service is down")


def make_dead_letters(task, path, total):
    """`total` FAILED jobs of `task`; a fiftieth of them, at least 40, has one of 20 keys. Their ids lie in the middle.

    Those with a key, and one other, have failed by claim() and fail(). The others get the columns of that one.
    """
    keyed = max(2 * KEYS, total // 50 // KEYS * KEYS)
    plain = (total - keyed) // 2
    add(task, path, plain)
    add_many([job(task, path, f"key-{number % KEYS}") for number in range(keyed)])
    add(task, path, total - keyed - plain)
    (first,) = claim(QUEUE, 1, worker="w")
    fail(first, error=DOWN)
    copy_failure(Job.objects.get(pk=first.job_id))
    while heads := claim(QUEUE, KEYS, worker="w"):
        for lease in heads:
            fail(lease, error=DOWN)
        for number in range(KEYS):
            resume(QUEUE, f"key-{number}")
    assert Job.objects.filter(queue=QUEUE, status=Job.Status.FAILED).count() == total == Job.objects.count()


def job(task, path, key=None):
    made = new_job(QUEUE, {"args": [path], "kwargs": {}}, max_attempts=1, ordering_key=key)
    return replace(made, task=task.module_path)


def add(task, path, count):
    one = job(task, path)
    for begun in range(0, count, CHUNK):
        add_many([one] * min(CHUNK, count - begun))


def copy_failure(failed):
    """Let all READY jobs without a key have failed as this one has."""
    names = ("status", "attempts", "cause", "fingerprint", "last_error", "finished_at", "updated_at", "last_started_at")
    columns = {name: getattr(failed, name) for name in names}
    rows = Job.objects.filter(queue=QUEUE, status=Job.Status.READY, ordering_key__isnull=True)
    while ids := list(rows.order_by("pk").values_list("pk", flat=True)[:CHUNK]):
        rows.filter(pk__gte=ids[0], pk__lte=ids[-1]).update(**columns)


def by_key():
    """Key -> the ids of its jobs, in their order."""
    found = defaultdict(list)
    for job_id, key in Job.objects.filter(ordering_key__isnull=False).order_by("pk").values_list("pk", "ordering_key"):
        found[bytes(key)].append(job_id)
    return found
