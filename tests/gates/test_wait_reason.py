"""wait_reason says why a READY job does not run: a code and its subject; it is gone when the job may start."""

from datetime import timedelta

import pytest

from jobqueue.flow import breaker, pause, resume, set_limit
from jobqueue.gates.limits import REASON_CHARS
from jobqueue.gates.rules import forget_rules
from jobqueue.models import FlowRule, Job
from jobqueue.testing import travel
from jobqueue.transitions import ack
from tests.factories import job, make_jobs, now
from tests.gates import jobs
from tests.gates.helpers import add, open_in_time, take, taken

pytestmark = pytest.mark.django_db


def reasons():
    return set(Job.objects.filter(status=Job.Status.READY).values_list("wait_reason", flat=True))


def test_of_a_task_that_is_full_names_the_task(limited):
    add(3, limited(concurrency_limit=1))
    taken()
    taken()
    assert reasons() == {f"slot {jobs.WORK}"}


def test_of_a_key_that_is_full_names_the_key(limited):
    add(3, limited(concurrency_limit=1, concurrency_key=jobs.by_argument), "customer-7")
    taken()
    taken()
    assert reasons() == {"key customer-7"}


@pytest.mark.parametrize(
    ("key", "text"),
    [("\u00fc", "key \u00fc"), (b"\xff\x01", "key 0xff01"), (b"a\x07", "key 0x6107"), ("812", "key 812")],
)
def test_of_a_key_can_always_be_read(limited, key, text):
    add(2, limited(concurrency_limit=1, concurrency_key="all").using(concurrency_key=key))
    taken()
    taken()
    assert reasons() == {text}


def test_of_a_rate_names_the_task_or_the_key(limited):
    add(2, limited(rate_limit="1/h"))
    add(2, limited(jobs.other, rate_limit="1/h", concurrency_key="customer-7"))
    taken()
    taken()
    assert reasons() == {f"rate {jobs.WORK}", "rate customer-7"}


def test_of_a_paused_task_names_the_task(plain):
    add(1, plain)
    pause("q", task=plain, reason="r")
    taken()
    assert reasons() == {f"paused {jobs.WORK}"}


def test_of_a_breaker_names_the_dependency(limited):
    add(1, limited(jobs.calls, dependency="stripe"))
    breaker("stripe").open("r")
    taken()
    assert reasons() == {"breaker stripe"}


def test_of_a_paused_or_limited_queue_is_written_on_no_job():
    make_jobs(3)
    set_limit("q", concurrency=1)
    taken()
    taken()
    pause("q", reason="r")
    taken()
    assert reasons() == {None}


def test_fits_into_its_column_however_long_the_name_is(limited):
    work = limited(concurrency_limit=1)
    ids = add(3, work)
    path = "a" * 255
    Job.objects.update(task=path)
    FlowRule.objects.create(queue="q", task=path, sets_concurrency=True, concurrency=1)
    forget_rules()
    assert taken() == ids[:1]
    assert taken() == []
    (reason,) = reasons()
    assert len(reason) <= REASON_CHARS
    assert reason.startswith("slot aaa")


def test_is_gone_when_the_job_starts_and_when_it_may_start(limited):
    first, second, third = add(3, limited(concurrency_limit=1))
    lease = take()[first]
    taken()
    assert job(second).wait_reason
    ack(lease)
    assert (job(second).wait_reason, job(second).gate) == (None, 0)
    assert taken() == [second]
    assert job(third).wait_reason


def test_of_a_job_that_was_opened_and_is_not_due_says_that_it_is_scheduled(plain):
    add(1, plain)
    pause("q", task=plain, reason="r")
    taken()
    Job.objects.update(run_at=now() + timedelta(hours=1))
    resume("q", task=plain)
    open_in_time()
    (reason,) = reasons()
    assert reason == "scheduled"
    assert taken() == []


def test_changes_with_what_the_job_waits_for(limited):
    work = limited(concurrency_limit=1, rate_limit="1/m")
    first, second = add(2, work)
    with travel(0) as clock:
        lease = take()[first]
        taken()
        assert job(second).wait_reason == f"slot {jobs.WORK}"
        ack(lease)
        taken()
        assert job(second).wait_reason == f"rate {jobs.WORK}"
        pause("q", task=work, reason="r")
        clock.forward(61)
        open_in_time()
        taken()
        assert job(second).wait_reason == f"paused {jobs.WORK}"
