"""What the databases really raise has the right cause, by their own numbers."""

from dataclasses import replace

import pytest
from django.db import OperationalError
from django.db.models.deletion import ProtectedError

from jobqueue.exceptions import DatabaseBusy
from jobqueue.failures import classify
from tests.factories import make_jobs
from tests.failures.raising import check
from tests.failures.real import rows
from tests.failures.real.rows import here
from tests.marks import committed

pytestmark = committed


@pytest.fixture
def place(world):
    """The world, with a job of this database, beside another one."""
    return replace(world, job_id=make_jobs(2)[0])


@pytest.mark.parametrize("real", here(rows.OBJECTS), ids=str)
def test_a_row_that_is_not_there_or_there_twice_is_data(real, place):
    check(real, place)


def test_a_row_that_others_need_is_data():
    assert classify(ProtectedError("used", set())) == "data"


@pytest.mark.parametrize("real", here([*rows.REFUSED, *rows.TOO_LONG]), ids=str)
def test_a_statement_that_the_database_refuses_is_data(real, place):
    error = check(real, place)
    # Django itself turns MySQL's error about a CHECK into its IntegrityError.
    assert classify(error.__cause__ or error.__context__) == "data", "the driver's own exception"


@pytest.mark.parametrize("real", here(rows.LOCKED), ids=str)
def test_a_lock_wait_a_deadlock_or_a_busy_database_is_a_resource(real, place):
    assert classify(check(real, place).__cause__) == "resource"


@pytest.mark.parametrize("real", here(rows.AWAY), ids=str)
def test_a_server_that_is_away_or_ends_the_session_is_a_dependency(real, place):
    assert classify(check(real, place).__cause__) == "dependency"


@pytest.mark.parametrize("name", ["PoolTimeout", "TooManyRequests"])
def test_an_empty_pool_of_connections_is_a_resource_also_as_django_raises_it(name):
    empty = type(name, (DriverError,), {"__module__": "psycopg_pool"})("couldn't get a connection after 30.00 sec")
    error = OperationalError(*empty.args)
    error.__cause__ = empty
    assert [classify(error), classify(empty)] == ["resource", "resource"]


class DriverError(Exception):
    """psycopg's OperationalError."""

    __module__ = "psycopg.errors"
    __qualname__ = "OperationalError"


class Numbered(Exception):
    """An error of a driver."""

    __module__ = "MySQLdb"
    __qualname__ = "Error"


class Stated(Exception):
    """An error of a driver."""

    __module__ = "psycopg"
    __qualname__ = "Error"


NUMBERS = {
    **dict.fromkeys((1205, 1213, 1412, 1040, 1203, 1226, 3572, 1114, 3024, 1969, 1317, 1180), "resource"),
    **dict.fromkeys((2002, 2003, 2006, 2013, 1045, 1053, 1290, 1927, 1047, 4031, 3955), "dependency"),
    **dict.fromkeys((1062, 1048, 1406, 1264, 1452, 3819, 1153, 1054, 1146, 1064, 1366), "data"),
}
STATES = {
    **dict.fromkeys(("53300", "55P03", "40P01", "40001", "53100", "53200", "57014", "25P03"), "resource"),
    **dict.fromkeys(("08006", "08001", "57P01", "57P02", "57P03", "28P01", "25006", "57P05"), "dependency"),
    **dict.fromkeys(("23505", "23503", "22001", "22003", "42P01", "42703", "40002"), "data"),
}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_number_of_mysql_decides(number):
    assert classify(Numbered(number, "text")) == NUMBERS[number]


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_postgresql_decides(state):
    error = Stated("text")
    error.sqlstate = state
    assert classify(error) == STATES[state]


def test_a_refused_connection_of_psycopg_has_no_state_but_a_text():
    assert classify(Stated("connection failed: FATAL:  sorry, too many clients already")) == "resource"
    assert classify(Stated("connection refused")) == "dependency"
    assert classify(DatabaseBusy("x")) == "resource"
