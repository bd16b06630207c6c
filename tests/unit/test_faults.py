"""Which errors of a database pass by themselves: what was to be written is kept and tried again."""

import pytest
from django.db import InternalError, OperationalError, ProgrammingError

from jobqueue.db.dialect import GONE_KINDS
from jobqueue.db.mariadb.features import MariaDB
from jobqueue.db.mysql.features import MySQL
from jobqueue.db.postgresql.features import PostgreSQL
from jobqueue.db.sqlite.features import SQLite
from tests.marks import finding


def caused_by(sqlstate):
    cause, error = Exception(), OperationalError("no room")
    cause.sqlstate = sqlstate
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("vendor", "error"),
    [
        (SQLite(), OperationalError("database or disk is full")),
        (MySQL(), OperationalError(1021, "Disk full")),
        (MySQL(), OperationalError(1114, "The table is full")),
        (MariaDB(), OperationalError(1969, "max_statement_time exceeded")),
        (PostgreSQL(), caused_by("53100")),
        (PostgreSQL(), caused_by("53200")),
    ],
    ids=ascii,
)
def test_no_room_or_no_time_is_not_the_fault_of_what_was_to_be_written(vendor, error):
    assert vendor.error_kind(error) not in (None, *GONE_KINDS)


@pytest.mark.parametrize(
    ("vendor", "error"),
    [(SQLite(), OperationalError("no such table: x")), (MySQL(), ProgrammingError(1064, "You have an error"))],
    ids=ascii,
)
def test_a_wrong_statement_does_not_become_right(vendor, error):
    assert vendor.error_kind(error) is None


@finding("K-C6")
def test_a_server_that_takes_no_writes_has_written_nothing():
    for number in (1047, 1290, 1792, 1836, 3100):
        error = OperationalError(number, "read-only")
        assert (MySQL().error_kind(error) in GONE_KINDS, MySQL().never_sent(error)) == (True, True)
    refused, cause = InternalError("cannot execute INSERT in a read-only transaction"), Exception()
    cause.sqlstate, refused.__cause__ = "25006", cause
    assert (PostgreSQL().error_kind(refused) in GONE_KINDS, PostgreSQL().never_sent(refused)) == (True, True)


# As psycopg 3 says it, with libpq's words behind a colon.
CUT = "server closed the connection unexpectedly\n\tThis probably means the server terminated abnormally"


@pytest.mark.parametrize(
    ("error", "never"),
    [
        (f"consuming input failed: {CUT}", False),
        ("consuming input failed: SSL SYSCALL error: EOF detected", False),
        ("consuming input failed: could not receive data from server: Connection timed out", False),
        (CUT, False),
        ("the connection is lost", False),
        ('connection failed: connection to server at "::1", port 5432 failed: Connection refused', True),
        ('connection to server at "::1", port 5432 failed: Connection refused', True),
        ("the connection is closed", True),
        ("sending query failed: no connection to the server", True),
    ],
)
def test_what_psycopg_says_of_an_answer_is_not_taken_for_what_it_says_of_a_request(error, never):
    assert PostgreSQL().never_sent(OperationalError(error)) is never
