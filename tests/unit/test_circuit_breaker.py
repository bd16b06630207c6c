"""Tasks whose runs all fail for reasons outside of them are tried one job at a time until one succeeds."""

from types import SimpleNamespace

import pytest
from django.db import IntegrityError, OperationalError

from jobqueue.exceptions import SoftTimeout
from jobqueue.signals import RunOutcome
from jobqueue.worker.child.circuit_breaker import CircuitBreaker
from jobqueue.worker.run.attempt import Ending, Outcome
from jobqueue.worker.shared.scoreboard import ProcessSlot
from tests.clocks import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def slot():
    return ProcessSlot()


@pytest.fixture
def breaker(slot, clock):
    return CircuitBreaker(slot, "w", adaptive=True, clock=clock)


def leases(count=1, queue="q", task=None):
    return [SimpleNamespace(queue=queue, task=task, job_id=number) for number in range(count)]


def ended(error=None, queue="q", ending=None, task=None):
    (lease,) = leases(1, queue, task)
    return Outcome(lease, ending or (Ending.FAILED if error else Ending.OK), 0.1, error=error)


def fail(breaker, times, error=None, queue="q", task=None):
    for _ in range(times):
        breaker.ended([ended(error or ConnectionError("refused"), queue, task=task)])


def running(breaker, found):
    """How many of these may run now."""
    free, parked = breaker.sift(found)
    assert len(free) + sum(map(len, parked.values())) == len(found)
    return len(free)


def parked_for(breaker, count):
    """For how long each of so many jobs is given back, in their order."""
    _, parked = breaker.sift(leases(count))
    seconds = {lease.job_id: delay for delay, group in parked.items() for lease in group}
    return [seconds[number] for number in sorted(seconds)]


def test_nine_failures_of_ten_slow_the_task_to_one_job_at_a_time(breaker, clock, slot):
    breaker.ended([ended()])
    fail(breaker, 8)
    assert running(breaker, leases(100)) == 100
    fail(breaker, 1)
    assert running(breaker, leases(100)) == 0
    assert slot.queues_slowed == 1
    clock.go(0.5)
    assert [running(breaker, leases(100)), running(breaker, leases(100))] == [1, 0]


def test_one_success_sets_it_free(breaker, slot):
    fail(breaker, 30)
    breaker.ended([ended()])
    assert running(breaker, leases(100)) == 100
    assert slot.queues_slowed == 0
    fail(breaker, 8)
    assert running(breaker, leases(100)) == 100


def test_half_of_the_runs_may_fail_for_ever(breaker):
    for _ in range(50):
        breaker.ended([ended(), ended(ConnectionError())])
    assert running(breaker, leases(100)) == 100


def test_other_queues_and_other_tasks_of_the_same_queue_go_on(breaker, slot):
    fail(breaker, 20, task="broken")
    mixed = leases(5, task="broken") + leases(5, task="other") + leases(5) + leases(5, "other", "broken")
    free, _ = breaker.sift(mixed)
    assert free == mixed[5:]
    fail(breaker, 20)
    assert slot.queues_slowed == 1, "two tasks of one queue"


def test_what_is_given_back_comes_in_time_for_the_next_probes_and_the_rest_after_them(breaker, clock):
    fail(breaker, 9)
    assert parked_for(breaker, 13) == [0.5 * n for n in range(1, 11)] + [5.0] * 3
    clock.go(1.2)
    # One of these is the probe; two places have become free.
    assert parked_for(breaker, 4) == [pytest.approx(4.3), pytest.approx(4.8), 5.0]


@pytest.mark.parametrize(("lasted", "delay"), [(3, 5), (20, 20), (3600, 60)])
def test_the_longer_it_lasts_the_less_often_the_same_jobs_are_given_back(breaker, clock, lasted, delay):
    fail(breaker, 9)
    clock.go(lasted)
    assert parked_for(breaker, 20)[-1] == delay


def test_a_drain_waits_for_what_was_given_back(breaker, clock):
    fail(breaker, 9)
    assert not breaker.holds
    assert running(breaker, leases(20)) == 0
    clock.go(5.0)
    assert breaker.holds
    clock.go(1.0)
    assert not breaker.holds


WRONG = [ValueError("x"), KeyError("x"), UnicodeError("x"), AttributeError("x"), IntegrityError("x"), RuntimeError("x")]


@pytest.mark.parametrize("error", [*WRONG, AssertionError(), type("Own", (Exception,), {})()])
def test_jobs_that_are_wrong_by_themselves_slow_nobody(breaker, error):
    fail(breaker, 50, error)
    assert running(breaker, leases(100)) == 100


def wrapped():
    """As a library for HTTP raises it."""
    try:
        try:
            raise ConnectionRefusedError("nobody listens")
        except OSError as error:
            raise type("ConnectError", (Exception,), {})() from error
    except Exception as error:
        return error


@pytest.mark.parametrize(
    "error", [TimeoutError(), OSError(28, "full"), SoftTimeout("x"), OperationalError("x"), wrapped()]
)
def test_failures_of_what_the_jobs_depend_on_do(breaker, error):
    fail(breaker, 50, error)
    assert running(breaker, leases(100)) == 0


def test_an_error_that_was_raised_from_itself_is_looked_at_for_a_moment_only(breaker):
    error = RuntimeError("x")
    error.__cause__ = error
    fail(breaker, 50, error)
    assert running(breaker, leases(100)) == 100


def test_parked_and_canceled_runs_say_nothing(breaker):
    for ending in (Ending.PARKED, Ending.CANCELED):
        for _ in range(20):
            breaker.ended([ended(ConnectionError("x"), ending=ending)])
    assert running(breaker, leases(100)) == 100


def test_a_job_that_fails_its_own_lease_is_no_success(breaker):
    fail(breaker, 50)
    one = ended(ending=Ending.FINISHED)
    one.settled = RunOutcome.RETRY
    breaker.ended([one])
    assert running(breaker, leases(100)) == 0
    one.settled = RunOutcome.OK
    breaker.ended([one])
    assert running(breaker, leases(100)) == 100


def test_not_adaptive_means_never_slowed(clock):
    breaker = CircuitBreaker(ProcessSlot(), "w", adaptive=False, clock=clock)
    fail(breaker, 50)
    assert running(breaker, leases(100)) == 100


def test_a_call_that_raised_is_one_run_however_many_jobs_it_had(breaker):
    error = ConnectionError("refused")
    breaker.ended([ended(error) for _ in range(50)])
    assert running(breaker, leases(100)) == 100
    breaker.ended([ended(ConnectionError("refused")) for _ in range(9)])
    assert running(breaker, leases(100)) == 0
