"""What the result codes and words of SQLite mean: whether an error passes, and why an attempt of a job failed."""

from __future__ import annotations

from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import Dialect, ErrorKind, Simulated
from jobqueue.failures import FailureCause

#: primary result codes; IOERR, CANTOPEN, READONLY and PERM are about the disk of this host
_RESOURCE = {3, 5, 6, 7, 8, 9, 10, 13, 14, 15}
_DATA = {1, 11, 17, 18, 19, 20, 21, 23, 25, 26}
_BUSY, _UNREADABLE = ("SQLITE_BUSY", 5, "database is locked"), ("SQLITE_IOERR", 10, "disk I/O error")


class SQLiteErrors(Dialect):
    """There are neither sessions nor a network that could lose an answer."""

    refusals = ("database is locked",)

    def error_kind(self, error: BaseException) -> ErrorKind | None:
        """Busy, locked and full are transient; a file that cannot be opened or read counts as a lost connection."""
        if isinstance(error, OperationalError):
            text = str(error)
            if "locked" in text or "busy" in text:
                return ErrorKind.SERIALIZATION if is_stale(error) else ErrorKind.BUSY
            if "is full" in text:
                return ErrorKind.NO_ROOM
            if "unable to open" in text or "disk I/O" in text:
                return ErrorKind.LOST_CONNECTION
        return None

    def never_sent(self, error: BaseException) -> bool:
        """There is no network that can lose an answer."""
        return True

    def is_stopped(self, error: BaseException) -> bool:
        return isinstance(error, OperationalError) and "interrupted" in str(error)

    def is_missing_table(self, error: BaseException) -> bool:
        return "no such table" in str(error)

    def cause(self, error: BaseException) -> FailureCause | None:
        code = getattr(error, "sqlite_errorcode", None)
        if not isinstance(code, int):
            return None
        data = FailureCause.DATA if code & 0xFF in _DATA else None
        return FailureCause.RESOURCE if code & 0xFF in _RESOURCE else data

    def simulated(self, connection: BaseDatabaseWrapper, kind: ErrorKind) -> Simulated:
        """The nearest errors to deadlocks and lost sessions: a busy file, and one that cannot be read."""
        wrapper: Any = connection
        is_lost = kind is ErrorKind.LOST_CONNECTION
        name, code, text = _UNREADABLE if is_lost else _BUSY
        error = wrapper.Database.OperationalError(text)
        error.sqlite_errorname, error.sqlite_errorcode = name, code
        return error, wrapper.connection.rollback if is_lost else None


def error_name(error: BaseException) -> str:
    """The name of the result code of a driver's error that Django has wrapped; "" without one."""
    return str(getattr(error.__cause__, "sqlite_errorname", ""))


def is_stale(error: BaseException) -> bool:
    """Whether a transaction may not write because the database has changed since it read."""
    return error_name(error) == "SQLITE_BUSY_SNAPSHOT"
