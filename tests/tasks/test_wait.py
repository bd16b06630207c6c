"""result.wait(): until the job has ended, or the time is over."""

import time

import pytest
from django.db import transaction

from jobqueue import task
from jobqueue.base.compat import TaskResultStatus
from jobqueue.exceptions import InsideTransaction, InvalidValue, WaitTimeout
from jobqueue.locks.deadline import Deadline
from jobqueue.transitions import ack, fail
from tests.app import tasks
from tests.factories import claim_one, lease_with
from tests.marks import committed, finding
from tests.patience import patient
from tests.races.actors import Actor


@task(queue_name="q")
def double(number):
    return 2 * number


@committed
def test_it_returns_when_another_connection_has_finished_the_job():
    result = double.enqueue(4)
    waiter = Actor(lambda: result.wait(patient()).return_value)
    ack(claim_one(), result=8)
    assert waiter.result() == 8


@committed
def test_a_failed_job_has_ended_too():
    result = double.enqueue(4)
    fail(lease_with(claim_one(), max_attempts=1), error="no")
    assert result.wait("1m").status == TaskResultStatus.FAILED


@committed
def test_it_gives_up_after_the_time_and_the_job_goes_on():
    result = double.enqueue(4)
    with pytest.raises(WaitTimeout, match="It goes on") as late:
        result.wait(0.05)
    assert isinstance(late.value, TimeoutError)
    ack(claim_one(), result=8)
    assert result.wait(0).return_value == 8


@committed
def test_it_is_refused_in_a_transaction_that_could_not_see_the_end():
    with transaction.atomic():
        result = double.enqueue(4)
        with pytest.raises(InsideTransaction, match="after the commit"):
            result.wait(patient())
    with pytest.raises(InvalidValue):
        result.wait(-1)


@finding("R-F4")
@committed
def test_a_wait_ends_although_a_test_has_frozen_the_clock_of_python(monkeypatch):
    slept, sleep = [], time.sleep

    def sleep_a_little(seconds):
        slept.append(seconds)
        assert sum(slept) < 5, "it would not end"
        sleep(seconds)

    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(time, "sleep", sleep_a_little)
    with pytest.raises(WaitTimeout):
        tasks.add.enqueue(1, 1).wait(timeout_seconds=0.05)
    deadline = Deadline(0.05)
    while (pause := deadline.pause_seconds()) is not None:
        time.sleep(pause)
    assert deadline.left_seconds() == 0.0
