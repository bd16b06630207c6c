"""A read that takes too long is stopped by the database, and the session is as it was."""

import pytest
from django.db import connection, transaction

from jobqueue.db.sockets import one_value
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout
from tests.factories import make_job
from tests.marks import committed
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
def test_other_errors_are_as_they_were():
    from django.db import DatabaseError

    with pytest.raises(DatabaseError), time_limit(5, using="default"):
        one_value(connection, "SELECT nothing_of_this_name")
