"""Which of the jobs that wait for an open breaker is the probe: the first one that may start."""

from datetime import timedelta

import pytest

from jobqueue.flow import breaker, pause, resume, set_limit
from jobqueue.gates import breaker as machine
from jobqueue.gates import kinds
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.models import BreakerState, GateWait, Job
from jobqueue.transitions import ack
from tests.factories import job, now, set_columns, state
from tests.gates import jobs
from tests.gates.helpers import add, look_again, take, taken, waiting
from tests.marks import committed, finding
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

pytestmark = committed


@pytest.fixture
def stripe(limited, settings):
    """A task that calls a service whose breaker is open."""
    # No probe is due before behind() says so, however slow the machine is.
    settings.JOBQUEUE = {"DEPENDENCIES": {"stripe": {"PROBE": "1h"}}}
    work = limited(dependency="stripe")
    machine.failed("stripe", [[Run(n, 1, 1.0, 0.0)] for n in range(5)], using="default")
    forget_rules()
    return work


def behind(*tasks, count=1):
    """The ids of so many jobs of each of these tasks that wait for the breaker, in this order; the probe is due."""
    found = [job_id for work in tasks for job_id in add(count, work)]
    for queue in {work.queue_name for work in tasks}:
        assert taken(queue=queue) == []
    assert set(found) <= set(waiting())
    BreakerState.objects.update(probe_at=now())
    forget_rules()
    return found


@finding("F9")
def test_jobs_that_have_expired_are_no_probes_and_are_ended(stripe):
    *expired, live = behind(stripe, count=15)
    for job_id in expired:
        set_columns(job_id, expires_at=now() - timedelta(seconds=1))
    look_again()
    assert taken() == [live]
    assert {state(job_id) for job_id in expired} == {"CANCELED"}
    assert GateWait.objects.count() == 0


@finding("F9")
@pytest.mark.parametrize("hold", ["queue", "task", "limit"])
def test_jobs_that_are_paused_are_no_probes_and_stay_behind_the_gate(stripe, limited, hold):
    other = limited(jobs.other, dependency="stripe")
    shut = stripe.using(queue_name="elsewhere") if hold == "queue" else stripe
    *paused, live = behind(*[shut] * 15, other)
    if hold == "queue":
        pause("elsewhere", reason="r")
    elif hold == "task":
        pause("q", task=stripe, reason="r")
    else:
        set_limit("q", task=stripe, concurrency=0)
    look_again()
    assert waiting() == paused
    assert taken() == [live]


@finding("F9")
def test_if_all_are_paused_none_is_opened_and_the_first_one_is_the_probe_after_the_pause(stripe):
    first, second = behind(stripe, count=2)
    pause("q", reason="r")
    for _ in range(2):
        assert look_again() == 0
    assert waiting() == [first, second]
    resume("q")
    look_again()
    (lease,) = take().values()
    assert lease.job_id == first
    ack(lease)


def test_a_look_goes_on_where_the_last_one_stopped(stripe, monkeypatch):
    monkeypatch.setattr(kinds, "SOME", 2)
    monkeypatch.setattr(kinds, "PROBE_PASSES_MAX", 2)
    *paused, live = behind(*[stripe.using(queue_name="elsewhere")] * 7, stripe)
    pause("elsewhere", reason="r")
    assert look_again() == 0
    assert look_again() == 1
    assert waiting() == paused
    assert taken() == [live]


def test_a_job_that_is_gone_leaves_no_row_and_the_next_one_is_the_probe(stripe):
    first, second = behind(stripe, count=2)
    Job.objects.filter(pk=first).delete()
    look_again()
    assert taken() == [second]
    assert GateWait.objects.count() == 0


@finding("F5")
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time: it has no locks of rows")
def test_a_job_whose_row_others_have_locked_is_passed_over(stripe):
    first, second = behind(stripe, count=2)
    with holding(lambda: Job.objects.select_for_update().get(pk=first)):
        opener = Actor(look_again)
        assert not opener.is_blocked()
        assert opener.result() == 1
        assert taken() == [second]
    assert waiting() == [first]


def test_all_are_opened_when_it_is_closed(stripe):
    found = behind(stripe, count=3)
    breaker("stripe").close()
    look_again()
    assert taken() == found
    assert job(found[0]).wait_reason is None
