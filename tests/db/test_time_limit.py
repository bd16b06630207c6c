"""A read that takes too long is stopped by the database, and the session is as it was."""

import pytest
from django.db import DatabaseError, connection, transaction

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.db.statements import one_value
from jobqueue.db.time_limit import lock_limit, time_limit
from jobqueue.exceptions import DatabaseBusy, StatementTimeout
from jobqueue.models import Job
from tests.factories import make_job
from tests.marks import committed, finding
from tests.settings import VENDOR

SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000000) "
    "SELECT COUNT(*) FROM n",
    "postgres": "SELECT pg_sleep(60)",
    # Not SLEEP(), which MySQL ends without an error.
    "mysql": "SELECT /*+ NO_MERGE(x) */ COUNT(*) FROM (SELECT a.* FROM information_schema.columns a, "
    "information_schema.columns b, information_schema.columns c) x",
}
SLOW["mariadb"] = SLOW["mysql"]
VARIABLE = {
    "mysql": "SELECT @@max_execution_time",
    "mariadb": "SELECT @@max_statement_time",
    "postgres": "SELECT current_setting('statement_timeout')",
}


def setting():
    return one_value(connection, VARIABLE[VENDOR]) if VENDOR in VARIABLE else None


def run_slow():
    with time_limit(0.3, using="default"):
        one_value(connection, SLOW[VENDOR])


@pytest.mark.skipif(VENDOR not in VARIABLE, reason="SQLite has no such variable")
@committed
def test_the_server_has_the_limit_in_its_own_unit():
    in_seconds = {
        "mysql": "SELECT @@max_execution_time / 1000",
        "mariadb": VARIABLE["mariadb"],
        "postgres": "SELECT setting::float / 1000 FROM pg_settings WHERE name = 'statement_timeout'",
    }
    with time_limit(600, using="default"):
        assert 300 < float(one_value(connection, in_seconds[VENDOR])) <= 600


@committed
def test_a_slow_read_is_stopped_and_the_session_has_no_limit_afterwards():
    before = setting()
    with pytest.raises(StatementTimeout, match="Nothing was written"):
        run_slow()
    assert setting() == before
    with time_limit(30, using="default"):
        assert one_value(connection, "SELECT 1") == 1
    assert setting() == before


@committed
def test_the_transaction_of_a_caller_goes_on():
    with transaction.atomic():
        first = make_job()
        with pytest.raises(StatementTimeout):
            run_slow()
        assert make_job() > first
    assert setting() in (None, 0, 0.0, "0")


@pytest.mark.skipif(VENDOR not in VARIABLE, reason="SQLite has no such variable")
@committed
def test_a_stricter_limit_of_the_session_stays():
    strict = {"mysql": "SET SESSION max_execution_time = 100", "mariadb": "SET SESSION max_statement_time = 0.1"}
    with connection.cursor() as cursor:
        cursor.execute(strict.get(VENDOR, "SET statement_timeout = '100ms'"))
    try:
        before = setting()
        # Without the stricter one it would take longer than a test may.
        with pytest.raises(StatementTimeout), time_limit(3600, using="default"):
            one_value(connection, SLOW[VENDOR])
        assert setting() == before
    finally:
        connection.close()


@committed
def test_a_block_of_many_short_reads_ends_too():
    def read_on():
        with time_limit(0.05, using="default") as limit:
            while True:
                one_value(connection, "SELECT 1")
                limit.check()

    with pytest.raises(StatementTimeout):
        read_on()


@committed
def test_blocks_of_one_page_have_little_time_each_once_their_time_together_is_over():
    with time_limit(60, using="default", together=0.0):
        for _ in range(3):
            with pytest.raises(StatementTimeout), time_limit(60, using="default"):
                one_value(connection, SLOW[VENDOR])
    with time_limit(60, using="default") as limit:
        assert limit.seconds == 60


@committed
def test_other_errors_are_as_they_were():
    with pytest.raises(DatabaseError), time_limit(5, using="default"):
        one_value(connection, "SELECT nothing_of_this_name")


LOCKS = {
    "postgres": "SELECT current_setting('lock_timeout')",
    "sqlite": "PRAGMA busy_timeout",
    "mysql": "SELECT CONCAT(@@SESSION.lock_wait_timeout, ' ', @@SESSION.innodb_lock_wait_timeout)",
}
LOCKS["mariadb"] = LOCKS["mysql"]
LIMITED = {"postgres": "1s", "sqlite": 4000, "mysql": "1 1", "mariadb": "1 1"}


@pytest.fixture
def held(db):
    """A job whose row, or on SQLite whose database, another session keeps locked."""
    job_id = make_job()
    holder = connection.copy()
    try:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            if VENDOR == "sqlite":
                cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("UPDATE job_queue SET priority = 7 WHERE id = %s", [job_id])
        yield job_id
    finally:
        holder.rollback()
        holder.close()


@finding("O-H2")
class TestALimitOfWaits:
    def write(self, job_id):
        Job.objects.filter(pk=job_id).update(priority=8)

    @committed
    def test_ends_a_write_that_waits_for_a_lock_and_the_session_is_as_before(self, held):
        before = one_value(connection, LOCKS[VENDOR])
        with pytest.raises(DatabaseError) as caught, lock_limit(using="default"):
            self.write(held)
        assert vendor("default").waited_too_long(caught.value)
        assert one_value(connection, LOCKS[VENDOR]) == before

    @committed
    def test_ends_the_tries_of_a_transaction_of_ours(self, held):
        with pytest.raises(DatabaseBusy) as caught, lock_limit(using="default"):
            retry_transient("edit", lambda: self.write(held), using="default")
        assert "6 times" not in str(caught.value)

    @committed
    def test_holds_for_sessions_that_are_opened_in_the_block(self):
        with lock_limit(using="default"):
            connection.close()
            assert one_value(connection, LOCKS[VENDOR]) == LIMITED[VENDOR]

    @committed
    def test_ends_a_read_with_the_error_of_reads(self, held):
        if VENDOR == "sqlite":
            pytest.skip("readers wait for nobody")
        with lock_limit(using="default"), pytest.raises(StatementTimeout), time_limit(60, using="default"):
            with transaction.atomic():
                list(Job.objects.select_for_update().filter(pk=held))

    @committed
    def test_in_a_transaction_that_fails_the_session_is_as_before(self, held):
        if VENDOR == "sqlite":
            pytest.skip("a transaction has the lock of the database from its beginning")
        before = one_value(connection, LOCKS[VENDOR])
        with transaction.atomic():
            with pytest.raises(DatabaseError), lock_limit(using="default"), transaction.atomic():
                self.write(held)
            assert one_value(connection, LOCKS[VENDOR]) == before
        assert one_value(connection, LOCKS[VENDOR]) == before
