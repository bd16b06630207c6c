"""Jobs of one statement of which only some have a run_at."""

from datetime import timedelta

import pytest

from jobqueue.db.clock import read_now
from jobqueue.models import Job
from jobqueue.producer.enqueueing import add_many, new_job

pytestmark = pytest.mark.django_db


def test_jobs_with_and_without_a_run_at_may_be_added_together():
    later = read_now("default").replace(microsecond=0) + timedelta(hours=1)
    now = read_now("default")
    add_many([new_job("default", None, run_at=later), new_job("default", None)])
    first, second = Job.objects.order_by("-pk").values_list("run_at", "wait_reason")[:2]
    assert second == (later, "scheduled")
    assert first[1] is None
    assert abs(first[0] - now) < timedelta(minutes=1)
