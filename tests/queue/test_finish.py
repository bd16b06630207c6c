"""finish(): the effect and the end of the job in one commit."""

import pytest

from jobqueue.context import JobContext
from jobqueue.exceptions import LeaseLost, ResultError, WrongDatabase
from jobqueue.models import Job
from jobqueue.transitions import reap
from tests.factories import claim_one, expire, job, make_job, row, state
from tests.marks import committed

pytestmark = committed


@pytest.fixture
def context():
    """The context of a running job of queue q."""
    make_job()
    return JobContext(claim_one())


def effects():
    return Job.objects.filter(queue="effects").count()


def test_effect_and_end_are_committed_together(context):
    with context.finish(result={"paid": True}):
        make_job("effects")
        assert state(context.job_id) == "PROCESSING"
    assert (state(context.job_id), job(context.job_id).result, effects()) == ("DONE", {"paid": True}, 1)
    assert context.finished


def failing_block(context):
    with context.finish():
        make_job("effects")
        raise ValueError("no")


def test_an_error_in_the_block_undoes_all_of_it(context):
    before = row(context.job_id)
    with pytest.raises(ValueError, match="no"):
        failing_block(context)
    assert (row(context.job_id), effects(), context.finished) == (before, 0, False)


def test_a_lost_lease_aborts_before_anything_is_written(context):
    expire(context.lease)
    reap()
    before = row(context.job_id)
    with pytest.raises(LeaseLost), context.finish():
        make_job("effects")
    assert (row(context.job_id), effects()) == (before, 0)


def test_a_lost_lease_does_not_even_run_the_block(context):
    expire(context.lease)
    reap()
    ran = []
    with pytest.raises(LeaseLost), context.finish():
        ran.append(1)
    assert ran == []


def test_another_database_is_refused_before_the_block(context):
    before = row(context.job_id)
    with pytest.raises(WrongDatabase), context.finish(using="other"):
        make_job("effects")
    assert (row(context.job_id), effects()) == (before, 0)


def test_a_result_that_cannot_be_stored_is_refused_before_the_block(context):
    with pytest.raises(ResultError), context.finish(result=object()):
        make_job("effects")
    assert (state(context.job_id), effects()) == ("PROCESSING", 0)


def test_a_second_finish_is_refused(context):
    with context.finish():
        pass
    with pytest.raises(LeaseLost), context.finish():
        make_job("effects")
    assert effects() == 0
