"""A task that was renamed and kept its earlier path as an alias has one limit and one pause for jobs of both names."""

import pytest

from jobqueue.flow import pause, resume, set_limit
from jobqueue.models import FlowRule
from jobqueue.testing import travel
from jobqueue.transitions import ack, reap
from tests.factories import expire, job, set_columns
from tests.gates import jobs
from tests.gates.helpers import add, open_in_time, take, taken, waiting

pytestmark = pytest.mark.django_db
OLD = "old.path.work"


@pytest.fixture
def renamed(limited):
    """renamed(**fields): the task, and the ids of a job of its earlier path and of a newer one."""

    def make(**fields):
        work = limited(aliases=[OLD], **fields)
        first, second = add(2, work)
        set_columns(first, task=OLD)
        return work, first, second

    return make


def test_jobs_of_both_names_share_the_slots(renamed):
    _, first, second = renamed(concurrency_limit=1)
    lease = take()[first]
    assert taken() == []
    assert waiting() == [second]
    ack(lease)
    assert taken() == [second]


def test_a_slot_of_the_earlier_name_is_given_on_when_its_lease_runs_out(renamed):
    _, first, second = renamed(concurrency_limit=1, max_attempts=1)
    lease = take()[first]
    assert taken() == []
    expire(lease)
    assert reap().dead == 1
    assert taken() == [second]


def test_jobs_of_both_names_share_the_rate(renamed):
    _, first, second = renamed(rate_limit="1/m")
    with travel(0) as clock:
        assert taken() == [first]
        assert taken() == []
        clock.forward(61)
        open_in_time()
        assert taken() == [second]


def test_a_pause_holds_jobs_of_both_names_and_resume_lets_them_go(renamed):
    work, first, second = renamed()
    pause("q", task=work, reason="r")
    assert taken() == []
    assert waiting() == [first, second]
    resume("q", task=work)
    open_in_time()
    assert taken() == [first, second]


def test_a_limit_that_is_set_binds_jobs_of_both_names(renamed):
    work, first, second = renamed()
    set_limit("q", task=work, concurrency=1)
    assert taken() == [first]
    assert taken() == []
    set_limit("q", task=work, concurrency=2)
    open_in_time()
    assert taken() == [second]


def test_a_pause_of_before_the_task_was_renamed_still_holds(renamed):
    FlowRule.objects.create(queue="q", task=OLD, mode="paused", reason="r")
    renamed()
    assert taken() == []


@pytest.mark.parametrize("names", [(OLD, jobs.WORK), (jobs.WORK, OLD)], ids=["first", "last"])
def test_a_rule_of_the_earlier_name_gives_way_to_one_of_the_present_name(renamed, names):
    for name in names:
        FlowRule.objects.create(queue="q", task=name, mode="paused" if name == OLD else "running", reason="r")
    _, first, second = renamed()
    assert taken() == [first, second]


def test_the_reason_names_the_task_as_it_is_called_now(renamed):
    work, first, _ = renamed()
    pause("q", task=work, reason="r")
    taken()
    assert job(first).wait_reason == f"paused {jobs.WORK}"
