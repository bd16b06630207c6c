"""finish(): the effect and the end of the job in one commit."""

import threading
from contextlib import suppress

import pytest
from django.db import connection, connections, transaction

from jobqueue.context.job_context import JobContext
from jobqueue.exceptions import (
    InsideTransaction,
    JobCanceled,
    LeaseLost,
    LockNotAcquired,
    NotSupported,
    ResultError,
    WrongDatabase,
)
from jobqueue.models import Job
from jobqueue.transitions import reap
from jobqueue.worker.run.attempt import Attempt, Ending
from tests.app.models import Ticket
from tests.blocking import is_held_up
from tests.factories import claim_one, expire, job, make_job, row, state
from tests.marks import committed, finding
from tests.patience import patient
from tests.settings import VENDOR

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


@pytest.fixture
def by_hand():
    """Turn autocommit off; what is left open is rolled back."""
    yield lambda: transaction.set_autocommit(False)
    if not connection.get_autocommit():
        transaction.rollback()
        transaction.set_autocommit(True)


def finish_with_an_effect(context):
    with context.finish():
        make_job("effects")


@finding("A10")
def test_autocommit_that_is_off_is_refused_before_the_block(context, by_hand):
    by_hand()
    with pytest.raises(InsideTransaction, match="autocommit is off"):
        finish_with_an_effect(context)
    transaction.rollback()
    transaction.set_autocommit(True)
    assert (state(context.job_id), effects(), context.finished) == ("PROCESSING", 0, False)


@finding("A10")
def test_an_atomic_block_that_will_not_commit_is_refused_as_well(context, by_hand):
    by_hand()
    with transaction.atomic(), pytest.raises(InsideTransaction, match="autocommit is off"):
        finish_with_an_effect(context)


@finding("A11")
@pytest.mark.skipif(VENDOR != "sqlite", reason="SQLite alone has one writer for all")
def test_on_sqlite_it_waits_for_the_write_lock_whatever_djangos_options_are(context, monkeypatch):
    monkeypatch.setattr(connections["default"], "transaction_mode", None)

    def write_beside():
        make_job("beside")
        connections.close_all()

    beside = threading.Thread(target=write_beside)
    with context.finish():
        # It has read the job's row. Whoever commits now takes the right to write from a transaction that only reads.
        beside.start()
        is_held_up(lambda: not beside.is_alive())
        make_job("effects")
    beside.join(patient())
    assert (state(context.job_id), effects(), Job.objects.filter(queue="beside").count()) == ("DONE", 1, 1)


ENDS = ["COMMIT", "ROLLBACK", "BEGIN", "-- why\nSTART TRANSACTION"]
if VENDOR in ("mysql", "mariadb"):
    ENDS += [
        "CREATE TABLE halves (n INT)",
        "/* x */ ALTER TABLE job_queue COMMENT = ''",
        f"TRUNCATE {Ticket._meta.db_table}",
    ]
    ENDS += [
        "drop table if exists halves",
        "SET autocommit = 1",
        "UNLOCK TABLES",
        "CREATE OR REPLACE VIEW h AS SELECT 1",
    ]


def define(context, statement):
    with context.finish():
        make_job("effects")
        with connection.cursor() as cursor:
            cursor.execute(statement)


@finding("A18")
@pytest.mark.parametrize("statement", ENDS)
def test_a_statement_that_would_commit_half_of_the_block_is_refused(context, statement):
    before = row(context.job_id)
    with pytest.raises(NotSupported, match="first half"):
        define(context, statement)
    assert (row(context.job_id), effects()) == (before, 0)


@pytest.mark.parametrize("statement", ["SAVEPOINT a", "CREATE TEMPORARY TABLE halves (n INT)", "SELECT 'COMMIT'"])
def test_a_statement_that_commits_nothing_is_let_through(context, statement):
    define(context, statement)
    assert (state(context.job_id), effects()) == ("DONE", 1)
    connection.close()


@pytest.mark.skipif(VENDOR not in ("postgres", "sqlite"), reason="elsewhere a definition cannot be undone")
def test_where_definitions_can_be_undone_they_are_a_part_of_the_commit(context):
    with suppress(KeyError), context.finish(), connection.cursor() as cursor:
        cursor.execute("CREATE TABLE halves (n INT)")
        raise KeyError
    assert "halves" not in connection.introspection.table_names()
