"""Ordering keys in users' own tests: what drain() and run_inline() do with them."""

import pytest
from django.db import transaction

from jobqueue import enqueue_many
from jobqueue.models import LaneEntry
from jobqueue.testing import drain, run_inline
from tests.app import tasks

pytestmark = pytest.mark.django_db


def test_drain_runs_the_jobs_of_a_key_in_order():
    enqueue_many("webhooks", [{"n": n} for n in range(5)], ordering_key="k")
    found = drain()
    assert found.ok == 5
    assert [run.job_id for run in found.runs] == sorted(run.job_id for run in found.runs)
    assert not LaneEntry.objects.exists()


def test_drain_opens_what_was_enqueued_in_a_transaction_that_a_test_case_never_commits():
    with transaction.atomic():
        enqueue_many("webhooks", [{"n": n} for n in range(3)], ordering_key="k")
    assert drain("webhooks").ok == 3


def test_run_inline_runs_them_at_once():
    with run_inline() as inline:
        tasks.add.using(ordering_key="k").enqueue(1, 2)
        tasks.add.using(ordering_key="k").enqueue(3, 4)
    assert inline.ok == 2
    assert not LaneEntry.objects.exists()
