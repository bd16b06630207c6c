"""finish(): the effect and the end of the job in one commit."""

from contextlib import suppress

import pytest
from django.db import Error, connection, connections

from jobqueue.context import JobContext
from jobqueue.exceptions import JobCanceled, LeaseLost, LockNotAcquired, ResultError, WrongDatabase
from jobqueue.models import Job
from jobqueue.testing import inject
from jobqueue.transitions import reap
from jobqueue.worker.perform import Attempt, Ending
from tests.factories import claim_one, expire, job, make_job, row, state
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = committed
# Where no deadlock undoes a transaction, a statement may ask for that.
UNDOES_ALL = (
    "INSERT OR ROLLBACK INTO job_queue (id, queue, payload) SELECT id, queue, payload FROM job_queue"
    if VENDOR == "sqlite"
    else "SELECT 7"
)


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


def swallowing_block(context):
    with context.finish():
        make_job("effects")
        with suppress(Error), inject("deadlock", at="^SELECT 7$"), connection.cursor() as cursor:
            cursor.execute(UNDOES_ALL, [])


def test_an_error_that_the_block_swallows_is_raised_if_it_has_undone_the_effect(context):
    before = row(context.job_id)
    with pytest.raises(Error):
        swallowing_block(context)
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


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another database of the project, with a table."""
    entry = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "db"}
    monkeypatch.setitem(connections.settings, "elsewhere", {**entry, "OPTIONS": {}})
    # By hand: a test's connections are opened for its own databases only.
    connections["elsewhere"].connect()
    with connections["elsewhere"].cursor() as cursor:
        cursor.execute("CREATE TABLE receipts (number INTEGER)")
    yield lambda sql: connections["elsewhere"].cursor().execute(sql)
    connections["elsewhere"].close()
    del connections["elsewhere"]


def write_both(context, elsewhere, sql):
    with context.finish():
        make_job("effects")
        elsewhere(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO receipts VALUES (1)",
        " update receipts SET number = 1",
        "DELETE FROM receipts",
        "/* view: pay */ INSERT INTO receipts VALUES (1)",
        "-- view: pay\nINSERT INTO receipts VALUES (1)",
        "WITH one AS (SELECT 1) INSERT INTO receipts SELECT * FROM one",
        "WITH one AS (SELECT 1) UPDATE receipts SET number = 1",
    ],
)
def test_a_write_to_another_database_in_the_block_is_refused_and_nothing_is_kept(context, elsewhere, sql):
    before = row(context.job_id)
    with pytest.raises(WrongDatabase, match="elsewhere"):
        write_both(context, elsewhere, sql)
    assert (row(context.job_id), effects()) == (before, 0)
    assert elsewhere("SELECT COUNT(*) FROM receipts").fetchone() == (0,)


def test_reading_another_database_in_the_block_and_writing_to_it_afterwards_is_fine(context, elsewhere):
    with context.finish():
        for words in ("", "/* update receipts */ ", "WITH one AS (SELECT REPLACE('a', 'a', 'update')) "):
            assert elsewhere(f"{words}SELECT COUNT(*) FROM receipts").fetchone() == (0,)
    elsewhere("INSERT INTO receipts VALUES (1)")
    assert state(context.job_id) == "DONE"


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


@pytest.mark.parametrize("error", [JobCanceled("late"), LockNotAcquired("late"), ValueError("late")])
def test_what_is_raised_after_it_changes_nothing(error):
    make_job()
    attempt = Attempt(claim_one(), lambda: False)
    with attempt:
        with attempt.context.finish():
            make_job("effects")
        raise error
    assert (attempt.ending(), attempt.error) == (Ending.FINISHED, error)
