"""Tasks with limits that are gone after each test, and workers that seem to run."""

import pytest

from jobqueue import task
from jobqueue.models import Worker
from tests.gates import jobs
from tests.process.conftest import start as start


@pytest.fixture
def limited(own_registry):
    """limited(**fields): the task work() in queue "q", with these fields."""

    def make(function=jobs.work, **fields):
        return task(queue_name="q", **fields)(function)

    return make


@pytest.fixture
def worker(db):
    """worker(name, queues): the row of a process that runs and serves these queues, however long the test takes."""

    def make(name="w1", queues="*", **columns):
        plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "concurrency": 2, "version": "1"}
        if "heartbeat_at" not in columns:
            plain["heartbeat_seconds"] = 3600.0
        return Worker.objects.create(name=name, queues=queues, **(plain | columns))

    return make
