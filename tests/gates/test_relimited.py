"""After a change of a limit no more jobs are opened than the new limit allows."""

import pytest

from jobqueue import flow, task
from jobqueue.models import Job
from jobqueue.transitions import ack
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, sweep, take, taken

pytestmark = pytest.mark.django_db


def open_jobs():
    return Job.objects.filter(status=Job.Status.READY, gate=0).count()


def test_a_raised_limit_opens_as_many_as_may_start(limited):
    work = limited(concurrency_limit=2)
    ids = add(30, work)
    assert taken() + taken() == ids[:2]
    flow.set_limit("q", task=work, concurrency=5)
    open_in_time()
    assert open_jobs() == 3
    assert taken() == ids[2:5]


def test_a_raised_rate_opens_a_bucket(limited):
    work = limited(rate_limit="1/h")
    ids = add(30, work)
    assert taken() + taken() == ids[:1]
    flow.set_limit("q", task=work, rate="5/s")
    open_in_time()
    assert open_jobs() <= 5


def test_a_limit_of_0_opens_nothing(limited):
    work = limited(concurrency_limit=2)
    ids = add(30, work)
    leases = take()
    taken()
    flow.set_limit("q", task=work, concurrency=0)
    ack(leases[ids[0]])
    open_in_time()
    assert open_jobs() <= 1
    assert taken() == []


def test_a_limit_that_is_taken_away_opens_all(limited):
    work = limited(concurrency_limit=2)
    ids = add(30, work)
    assert taken() + taken() == ids[:2]
    flow.set_limit("q", task=work, concurrency=None)
    while open_in_time():
        pass
    assert taken() == ids[2:]


def test_a_limit_that_is_cleared_is_that_of_the_task_again(limited):
    work = limited(concurrency_limit=5)
    ids = add(30, work)
    flow.set_limit("q", task=work, concurrency=2)
    assert taken() + taken() == ids[:2]
    flow.clear_limit("q", task=work)
    open_in_time()
    assert taken() == ids[2:5]


def test_a_limit_of_0_of_one_task_leaves_those_of_another_with_the_same_key_alone(own_registry):
    fields = {"queue_name": "q", "concurrency_key": jobs.by_argument, "concurrency_limit": 1}
    one, other = task(**fields)(jobs.work), task(**fields)(jobs.other)
    ids = add(1, other, "k") + add(1, other, "k") + add(1, one, "k")
    lease = take()[ids[0]]
    taken()
    flow.set_limit("q", task=one, concurrency=0)
    ack(lease)
    started = []
    for _ in range(3):
        sweep()
        look_again()
        started += taken()
    assert started == [ids[1]]
