"""The list of jobs says that jobs wait while no worker runs."""

from datetime import timedelta

import pytest
from django.test import override_settings

from jobqueue.models import Worker
from tests.admin.helpers import JOBS, root, text_of
from tests.factories import make_in_state, make_job, now, set_columns

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
WARNING = "No worker is running, so no job starts. Start one: python manage.py runworker"


def worker(heartbeat_at, **columns):
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "queues": "*", "concurrency": 1}
    made = Worker.objects.create(name="w", version="1", **(plain | columns))
    Worker.objects.filter(pk=made.pk).update(heartbeat_at=heartbeat_at)


@pytest.fixture
def listed():
    """The page of the list, read anew at each call."""
    client = root()
    return lambda: text_of(client.get(JOBS))


def test_jobs_that_wait_without_a_worker_are_told(listed):
    make_job()
    assert WARNING in listed()


def test_a_worker_that_runs_is_enough(listed):
    make_job()
    worker(now())
    assert WARNING not in listed()


@override_settings(JOBQUEUE={"WORKER_SILENT_SECONDS": 30})
def test_a_worker_that_stopped_or_is_silent_is_none(listed):
    make_job()
    worker(now() - 60 * SECOND, heartbeat_seconds=10)
    assert WARNING in listed()
    Worker.objects.update(heartbeat_seconds=25)
    assert WARNING not in listed()
    Worker.objects.update(heartbeat_at=now(), stopped_at=now())
    assert WARNING in listed()


def test_jobs_that_do_not_wait_for_a_worker_need_none(listed):
    make_in_state("DONE")
    set_columns(make_job(), run_at=now() + 3600 * SECOND)
    set_columns(make_job(), gate=1)
    assert WARNING not in listed()
