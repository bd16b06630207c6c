"""Several workers at once, whose processes are killed and replaced."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from jobqueue.models import Job
from jobqueue.producer.enqueueing import add_many, new_job
from tests.proofs import audit


def add(task, count, *arguments):
    """`count` jobs of a task, committed in few transactions; with its key if it has one."""
    add_many([_job(task, arguments)] * count)


def add_each(task, calls):
    """A job of a task for each of the tuples of arguments, as add()."""
    add_many([_job(task, arguments) for arguments in calls])


def _job(task, arguments):
    job = new_job("default", {"args": list(arguments), "kwargs": {}}, max_attempts=task.max_attempts)
    key = task.concurrency_key(*arguments).encode() if task.concurrency_key else None
    return replace(job, task=task.module_path, concurrency_key=key)


def members(worker):
    """The living processes of a worker, but the one that writes its log."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            if int(words[2]) == worker.process.pid and words[0] != "Z":
                found.append(int(path.parent.name))
    return found


class Crowd:
    """So many workers; one whose supervisor has died is replaced."""

    def __init__(self, run_worker, workers, *options):
        self._start = lambda: run_worker(*options)
        self.workers = [self._start() for _ in range(workers)]
        self.kills = 0

    def kill_one(self):
        """SIGKILL to any process of any worker: supervisor, monitor, child or log writer."""
        victims = [pid for worker in self.workers for pid in members(worker)]
        if victims:
            with suppress(ProcessLookupError):
                os.kill(random.choice(victims), signal.SIGKILL)
                self.kills += 1
        self.replace()

    def replace(self):
        """Start a worker for each whose supervisor is dead. Its children end what they have begun."""
        for number, worker in enumerate(self.workers):
            if worker.process.poll() is not None:
                self.workers[number] = self._start()


def left():
    """How many jobs have not ended."""
    return Job.objects.exclude(status__in=(Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)).count()


def most_leases():
    """By name of a body, the greatest number of its jobs that were PROCESSING at once, as triggers have recorded it."""
    names = {pk: payload["args"][1] for pk, payload in Job.objects.values_list("pk", "payload")}
    running, most = {}, {}
    for job_id, old, new in audit.run(f"SELECT job_id, old_status, new_status FROM {audit.TABLE} ORDER BY seq"):
        name = names[job_id]
        running[name] = running.get(name, 0) + (new == 1) - (old == 1)
        most[name] = max(most.get(name, 0), running[name])
    return most


def percentile(values, share):
    """The value below which this share of them lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
