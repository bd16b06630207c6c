"""What each error of this database means: whether it passes by itself, and whether the session is still there."""

import pytest
from django.db import OperationalError

from jobqueue.db import fault_vendor
from jobqueue.db.dialect import ErrorKind
from tests.settings import VENDOR

pytestmark = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has words and no numbers")

NUMBERS = {
    ErrorKind.DEADLOCK: [1213],
    ErrorKind.LOCK_TIMEOUT: [1205, 3572],
    # The row has changed; a cluster refuses the commit.
    ErrorKind.SERIALIZATION: [1020, 1180, 3101],
    ErrorKind.CANCELED: [1317, 1969, 3024],
    ErrorKind.NO_ROOM: [1021, 1114, 1206],
    # Of the server, of the account by a setting, of the account by its own limit.
    ErrorKind.NO_CONNECTION: [1040, 1203, 1226],
    # The session was ended or cut; the server is read-only after a failover, or out of its cluster.
    ErrorKind.LOST_CONNECTION: [1053, 1927, 2006, 2013, 4031, 1290, 1792, 1836, 1047, 3100],
}
STATES = {
    ErrorKind.DEADLOCK: ["40P01"],
    ErrorKind.LOCK_TIMEOUT: ["55P03"],
    ErrorKind.SERIALIZATION: ["40001"],
    ErrorKind.CANCELED: ["57014"],
    ErrorKind.NO_ROOM: ["53100", "53200", "58030"],
    ErrorKind.NO_CONNECTION: ["53300"],
    ErrorKind.LOST_CONNECTION: ["08006", "57P01", "57P02", "57P03", "57P05", "25006", "25P03"],
}


def error_of(code):
    """As Django raises it: MySQL's drivers have the number first, those of PostgreSQL the state in the cause."""
    if isinstance(code, int):
        return OperationalError(code, "refused")
    error, cause = OperationalError("refused"), Exception()
    cause.sqlstate = code
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("kind", ErrorKind)
def test_each_number_of_the_server_has_its_kind(kind):
    codes = (STATES if VENDOR == "postgres" else NUMBERS).get(kind, [])
    found = {code: fault_vendor("default").error_kind(error_of(code)) for code in codes}
    assert found == dict.fromkeys(codes, kind)


def test_a_wrong_statement_has_none():
    code = "42601" if VENDOR == "postgres" else 1064
    assert fault_vendor("default").error_kind(error_of(code)) is None
