"""drain() honours limits, rates, pauses and breakers, as workers do."""

from datetime import timedelta

import pytest

from jobqueue import task
from jobqueue.flow import breaker, pause, resume, set_limit
from jobqueue.models import Job
from jobqueue.testing import drain
from tests.factories import make_jobs, now
from tests.gates import jobs
from tests.gates.helpers import add, waiting

pytestmark = pytest.mark.usefixtures("kind", "own_registry")


def made(function=jobs.work, **fields):
    return task(queue_name="q", **fields)(function)


def test_a_paused_queue_runs_nothing_until_it_is_resumed():
    made()
    add(2, made())
    pause("q", reason="r")
    assert drain().ran == 0
    resume("q")
    assert drain().ran == 2


def test_a_paused_task_waits_while_others_run():
    held, free = made(), made(jobs.other)
    add(2, held)
    add(3, free)
    pause("q", task=held, reason="r")
    assert drain().ran == 3
    assert len(waiting()) == 2
    resume("q", task=held)
    assert drain().ran == 2


def test_the_clock_goes_on_to_the_end_of_a_pause():
    add(2, made())
    pause("q", reason="r", until=now() + timedelta(hours=2))
    assert drain(until=timedelta(hours=1)).ran == 0
    assert drain(now=now() + timedelta(hours=3)).ran == 2


def test_the_clock_goes_on_to_the_end_of_the_pause_of_a_task():
    work = made()
    add(2, work)
    pause("q", task=work, reason="r", until=now() + timedelta(hours=2))
    assert drain(until=timedelta(hours=1)).ran == 0
    assert drain(until=timedelta(hours=3)).ran == 2


def test_the_clock_goes_on_to_the_end_of_a_pause_within_until():
    add(2, made())
    make_jobs(1, queue="other")
    pause("q", reason="r", until=now() + timedelta(hours=2))
    assert drain("q", until=timedelta(hours=1)).ran == 0
    assert drain("q", until=timedelta(hours=3)).ran == 2


def test_a_job_that_becomes_due_in_a_pause_runs_at_its_end():
    made().using(run_after=now() + timedelta(hours=1)).enqueue()
    pause("q", reason="r", until=now() + timedelta(hours=2))
    assert drain(until=timedelta(hours=3)).ran == 1


def test_a_pause_without_end_and_a_limit_of_0_are_no_reason_to_go_on():
    add(2, made())
    pause("q", reason="r")
    assert drain(until=timedelta(days=30)).ran == 0
    resume("q")
    set_limit("q", rate=0)
    assert drain(until=timedelta(days=30)).ran == 0


@pytest.mark.parametrize("rate", ["2/m", "2/s"])
def test_the_rate_of_a_queue_lets_all_jobs_run_as_the_clock_goes_on(rate):
    add(7, made())
    set_limit("q", rate=rate)
    start = now()
    assert drain(until=timedelta(minutes=10)).ran == 7
    assert now() - start < timedelta(minutes=5)


def test_a_rate_of_a_queue_of_which_the_clock_does_not_reach_the_next_token():
    add(7, made())
    set_limit("q", rate="2/m")
    assert drain(until=timedelta(seconds=95)).ran == 4


def test_all_jobs_of_a_limited_task_run_one_after_another():
    ids = add(10, made(concurrency_limit=1))
    assert [run.job_id for run in drain().runs] == ids
    assert waiting() == []


def test_all_jobs_of_limited_keys_run():
    work = made(concurrency_limit=1, concurrency_key=jobs.by_argument)
    for key in "abcabc":
        work.enqueue(key)
    assert drain().ok == 6


def test_a_rate_lets_a_bucket_run_and_the_rest_as_the_clock_goes_on():
    ids = add(5, made(rate_limit="2/m"))
    start = now()
    assert drain().ran == 1
    assert drain(until=timedelta(seconds=95)).ran == 3
    assert drain(now=start + timedelta(hours=1)).ran >= 1
    assert not Job.objects.filter(pk__in=ids).exclude(status=Job.Status.DONE).exists()


def test_a_limit_of_0_runs_nothing_however_long_the_clock_goes_on():
    work = made()
    add(2, work)
    set_limit("q", task=work, concurrency=0)
    assert drain(until=timedelta(days=30)).ran == 0
    assert len(waiting()) == 2


def test_the_limit_of_a_queue_holds_while_jobs_run():
    make_jobs(1, queue="unlimited")
    add(3, made())
    set_limit("q", concurrency=1)
    assert drain("q").ran == 3


def test_jobs_behind_an_open_breaker_do_not_run():
    add(2, made(jobs.calls, dependency="stripe"))
    breaker("stripe").open("r")
    assert drain(until=timedelta(days=1)).ran == 0
    breaker("stripe").close()
    assert drain().ran == 2
