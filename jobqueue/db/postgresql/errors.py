"""What the SQLSTATEs and the words of PostgreSQL mean: whether an error passes, and why an attempt of a job failed."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseError

from jobqueue.db.dialect import Dialect, ErrorKind, Simulated, fail_on_purpose
from jobqueue.failures import FailureCause

#: a lock could not be had in time; statement_timeout or pg_cancel_backend() ended a statement
LOCK_TIMEOUT, CANCELED = "55P03", "57014"
# Serialization failure, deadlock, lock not available, statement canceled; no room on disk or in memory, disk error.
_TRANSIENT = {
    "40001": ErrorKind.SERIALIZATION,
    "40P01": ErrorKind.DEADLOCK,
    "55P03": ErrorKind.LOCK_TIMEOUT,
    "57014": ErrorKind.CANCELED,
    **dict.fromkeys(("53100", "53200", "58030"), ErrorKind.NO_ROOM),
}
# Connection exceptions are class 08; 57Pxx shut down or terminated, 25006 read-only.
_GONE = {"57P01", "57P02", "57P03", "57P05", "25006", "25P03"}
# Terminated (what it was doing is rolled back), starting up or shutting down, read-only: it takes no writes.
_NEVER_TAKEN = ("57P01", "57P03", "25006")
# How the drivers' own words begin; libpq's are behind them.
_NEVER_SENT = (
    "connection failed: ", "connection to server at ", "connection timeout expired", "connection is bad",
    "failed to resolve host", "the connection is closed", "connection already closed", "sending query failed: ",
    "flushing failed: ",
)  # fmt: skip
#: of psycopg_pool, for Django's option "pool": no connection was free in time, or too many threads wait for one
_POOL_ERRORS = {"PoolTimeout", "TooManyRequests"}
#: SQLSTATE, or its beginning; the longest that fits decides. Unlisted: the server refused the statement or its values
_CAUSES = {
    **dict.fromkeys(
        ["08", "28", "57P", "58", "XX", "F0", "25006", "40003", "42501", "72", "3D"], FailureCause.DEPENDENCY
    ),
    **dict.fromkeys(["40", "53", "55", "57", "54001", "25P03", "25P04", "HYT"], FailureCause.RESOURCE),
    "40002": FailureCause.DATA,
    "HY": None,
}
_SIMULATED = {
    ErrorKind.DEADLOCK: ("40P01", "deadlock detected"),
    ErrorKind.LOCK_TIMEOUT: ("55P03", "canceling statement: lock timeout"),
}


class PostgreSQLErrors(Dialect):
    """By the SQLSTATE; errors that have none are of the driver, or of a login that was refused."""

    refusals = ("too many clients", "too many connections", "remaining connection slots", "no more connections allowed")

    def error_kind(self, error: BaseException) -> ErrorKind | None:
        """By SQLSTATE; an operational error without one is a lost connection."""
        if not isinstance(error, DatabaseError | InterfaceError):
            return None
        if self._has_no_connection(error):
            return ErrorKind.NO_CONNECTION
        state = self.error_code(error)
        if state in _GONE or state.startswith("08"):
            return ErrorKind.LOST_CONNECTION
        if isinstance(error, OperationalError | InterfaceError) and len(state) != 5:
            return ErrorKind.LOST_CONNECTION
        return _TRANSIENT.get(state)

    def _has_no_connection(self, error: BaseException) -> bool:
        """Whether the server, the account or a pool of psycopg had no connection left."""
        if sqlstate(error) == "53300" or type(error.__cause__).__name__ in _POOL_ERRORS:
            return True
        # When a login is refused, psycopg has no code, only the words of libpq.
        return sqlstate(error) is None and any(words in str(error) for words in self.refusals)

    def never_sent(self, error: BaseException) -> bool:
        """There was no session, the driver could not send all of the statement, or the server ended it first.

        psycopg says "consuming input failed" for an answer that did not arrive: then it is unknown.
        """
        taken = self.error_code(error) not in _NEVER_TAKEN and not self._has_no_connection(error)
        return not taken or str(error).startswith(_NEVER_SENT)

    def error_code(self, error: BaseException) -> str:
        return sqlstate(error) or type(error).__name__

    def is_missing_table(self, error: BaseException) -> bool:
        return sqlstate(error) == "42P01"

    def cause(self, error: BaseException) -> FailureCause | None:
        """By SQLSTATE, which other databases have, too. MySQL's own driver also has a number, which says more."""
        if type(error).__name__ in _POOL_ERRORS:
            return FailureCause.RESOURCE
        for name in ("sqlstate", "pgcode"):
            state = getattr(error, name, None)
            if isinstance(state, str) and not isinstance(getattr(error, "errno", None), int):
                begins = (state[:length] for length in range(len(state), 1, -1))
                return _CAUSES.get(next((begin for begin in begins if begin in _CAUSES), ""), FailureCause.DATA)
        return None

    def simulated(self, connection: BaseDatabaseWrapper, kind: ErrorKind) -> Simulated:
        """Any error makes the server refuse the rest of the transaction."""
        driver: Any = connection.Database  # type: ignore[attr-defined]
        if kind is ErrorKind.LOST_CONNECTION:
            end = "SELECT pg_terminate_backend(pg_backend_pid())"
            gone = driver.OperationalError("server closed the connection unexpectedly")
            return gone, lambda: fail_on_purpose(connection, end)
        state, text = _SIMULATED[kind]
        return driver.errors.lookup(state)(text), lambda: fail_on_purpose(connection, "SELECT 1/0")


def sqlstate(error: BaseException) -> str | None:
    """SQLSTATE of the driver's exception; None where the server did not answer."""
    found: str | None = getattr(error.__cause__, "sqlstate", None)
    return found
