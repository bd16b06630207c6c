"""Queues whose runs all fail are claimed one job at a time until one succeeds."""

from types import SimpleNamespace

import pytest

from jobqueue.exceptions import SoftTimeout
from jobqueue.worker.board import Region
from jobqueue.worker.brake import Brake
from jobqueue.worker.perform import Ending, Outcome
from tests.unit.test_governor import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def brake(clock):
    return Brake(Region(), "w", adaptive=True, clock=clock)


def ended(error=None, queue="q", ending=None):
    lease = SimpleNamespace(queue=queue)
    return Outcome(lease, ending or (Ending.FAILED if error else Ending.OK), 0.1, error=error)


def fail(brake, times, error=None, queue="q"):
    for _ in range(times):
        brake.ended([ended(error or ConnectionError("refused"), queue)])


def test_nine_failures_of_ten_slow_the_queue_to_one_job_at_a_time(brake, clock):
    brake.ended([ended()])
    fail(brake, 8)
    assert brake.room("q", 100) == 100
    fail(brake, 1)
    assert brake.room("q", 100) == 0
    clock.go(0.5)
    assert [brake.room("q", 100), brake.room("q", 100)] == [1, 0]


def test_one_success_sets_it_free(brake):
    fail(brake, 30)
    brake.ended([ended()])
    assert brake.room("q", 100) == 100
    fail(brake, 8)
    assert brake.room("q", 100) == 100


def test_half_of_the_runs_may_fail_for_ever(brake):
    for _ in range(50):
        brake.ended([ended(), ended(ConnectionError())])
    assert brake.room("q", 100) == 100


def test_other_queues_go_on(brake):
    fail(brake, 20)
    assert (brake.room("q", 5), brake.room("other", 5)) == (0, 5)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), UnicodeError("x")])
def test_jobs_that_are_wrong_by_themselves_slow_nobody(brake, error):
    fail(brake, 50, error)
    assert brake.room("q", 100) == 100


@pytest.mark.parametrize("error", [TimeoutError(), OSError("x"), SoftTimeout("x"), type("Http", (Exception,), {})()])
def test_failures_of_what_the_jobs_depend_on_do(brake, error):
    fail(brake, 50, error)
    assert brake.room("q", 100) == 0


def test_parked_and_canceled_runs_say_nothing(brake):
    for ending in (Ending.PARKED, Ending.CANCELED):
        for _ in range(20):
            brake.ended([ended(RuntimeError("x"), ending=ending)])
    assert brake.room("q", 100) == 100


def test_not_adaptive_means_never_slowed(clock):
    brake = Brake(Region(), "w", adaptive=False, clock=clock)
    fail(brake, 50)
    assert brake.room("q", 100) == 100


def test_a_call_that_raised_is_one_run_however_many_jobs_it_had(brake):
    error = ConnectionError("refused")
    brake.ended([ended(error) for _ in range(50)])
    assert brake.room("q", 100) == 100
    brake.ended([ended(ConnectionError("refused")) for _ in range(9)])
    assert brake.room("q", 100) == 0
