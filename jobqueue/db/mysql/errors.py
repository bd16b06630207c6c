"""What the error numbers of MySQL and MariaDB mean: whether an error passes, and why an attempt of a job failed."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseError

from jobqueue.db.dialect import Dialect, ErrorKind, Simulated, fail_on_purpose
from jobqueue.failures import FailureCause

#: the server has ended the session, or the answer was lost: shutting down, killed, gone, lost, idle for too long
SESSION_LOST = {1053, 1077, 1079, 1927, 2006, 2013, 2055, 4031}
#: the statement's time is over (MariaDB, MySQL), KILL QUERY
LIMITS = {1969, 3024, 1317}
#: deadlock, row changed (MariaDB), refused by a cluster: the server has rolled the whole transaction back
UNDOES = {1213, 1020, 1180, 3101}
#: lock wait timeout (MariaDB's NOWAIT too), NOWAIT
NOT_YET = {1205, 3572}
#: MariaDB with innodb_snapshot_isolation: the row is newer than the snapshot
CHANGED = 1020
DUPLICATE_KEY = 1062
# No room: 1021 disk, 1114 table, 1206 locks. It may come back, and what was to be written was not at fault.
# Too many connections: of the server, of the account by a setting, of the account by its own limits.
_FULL = {1040, 1203, 1226}
_TRANSIENT: dict[object, ErrorKind] = {
    1213: ErrorKind.DEADLOCK,
    **dict.fromkeys(NOT_YET, ErrorKind.LOCK_TIMEOUT),
    **dict.fromkeys((1020, 3101, 1180), ErrorKind.SERIALIZATION),
    **dict.fromkeys(LIMITS, ErrorKind.CANCELED),
    **dict.fromkeys((1021, 1114, 1206), ErrorKind.NO_ROOM),
    **dict.fromkeys(_FULL, ErrorKind.NO_CONNECTION),
}
# Client: 2000-2027. Server: read-only, cluster without quorum.
_READ_ONLY = {1047, 1290, 1792, 1836, 3100}
_GONE = {1152, 1158, 1159, 1160, 1161, 3032} | _READ_ONLY
# Logins that are refused until the account is repaired: access denied, account locked, no such database.
_REFUSED = {1044, 1045, 1049, 1698, 3118, 3955, 4151}
_GONE |= _REFUSED | SESSION_LOST
_GONE |= {2000, 2002, 2003, 2004, 2005, 2014, 2026, 2027, 3168, 3169, 3170}

#: why an attempt failed, beside the numbers above
_RESOURCE = {
    # table or row changed, user lock; cannot create a thread, too many prepared statements or transactions at once
    1412, 3058, 1135, 1461, 1637,
    # memory, disk, open files, file locks of the server; a limit on the time of a statement
    1026, 1030, 1037, 1038, 1041, 1016, 1023, 1028, 5, 28, 1015, 1907, 2008,
}  # fmt: skip
_DEPENDENCY = {
    # access refused to the host, the user, a table; offline; a table is damaged
    1129, 1130, 1142, 1143, 1227, 1820, 1862, 1036, 1194, 1195,
    # the connection broke
    1042, 1043, 1080, 1154, 1155, 1156, 1157, 1184,
}  # fmt: skip
# Numbers from 2000 to 2999 are the client's: it could not reach the server. Except for what it was given.
_CLIENT_DATA = {2014, 2020, 2029, 2030, 2031, 2032, 2033, 2034, 2036}
_SIMULATED: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.DEADLOCK: (1213, "Deadlock found when trying to get lock; try restarting transaction"),
    ErrorKind.LOCK_TIMEOUT: (1205, "Lock wait timeout exceeded; try restarting transaction"),
    ErrorKind.LOST_CONNECTION: (2013, "Lost connection to server during query"),
}


class MySQLErrors(Dialect):
    """By the number that MySQL's drivers put first."""

    def error_kind(self, error: BaseException) -> ErrorKind | None:
        """By server or client error number; 2006 also means an oversize packet, which enqueue refuses beforehand."""
        if not isinstance(error, DatabaseError | InterfaceError):
            return None
        code = error_number(error)
        if code in _GONE or (isinstance(error, InterfaceError) and code in (0, None)):
            return ErrorKind.LOST_CONNECTION
        return _TRANSIENT.get(code)

    def never_sent(self, error: BaseException) -> bool:
        """2006 = the command could not be sent; 2013 = the answer was lost. No connection (2002, 2003): never sent.

        A server that takes no writes has answered: it has refused the statement, or rolled back at the commit.
        """
        return error_number(error) in {0, 2002, 2003, 2005, 2006, 4031} | _FULL | _REFUSED | _READ_ONLY

    def error_code(self, error: BaseException) -> str:
        return str(error_number(error)) if isinstance(error, DatabaseError) else super().error_code(error)

    def is_missing_table(self, error: BaseException) -> bool:
        return error_number(error) == 1146

    def cause(self, error: BaseException) -> FailureCause | None:
        """By its number; 1000 to 5999 are the server's."""
        number = getattr(error, "errno", None)
        if not isinstance(number, int):
            number = error_number(error)
        if not isinstance(number, int) or isinstance(number, bool):
            return None
        if number in _RESOURCE or number in _TRANSIENT:
            return FailureCause.RESOURCE
        if number in _CLIENT_DATA:
            return FailureCause.DATA
        if number in _DEPENDENCY or number in _GONE or 2000 <= number < 3000:
            return FailureCause.DEPENDENCY
        return FailureCause.DATA if 1000 <= number < 6000 else None

    def simulated(self, connection: BaseDatabaseWrapper, kind: ErrorKind) -> Simulated:
        """A deadlock rolls the whole transaction back, a lock wait only the statement."""
        wrapper: Any = connection
        after = {
            ErrorKind.DEADLOCK: wrapper.connection.rollback,
            ErrorKind.LOST_CONNECTION: lambda: fail_on_purpose(connection, "KILL CONNECTION_ID()"),
        }
        return wrapper.Database.OperationalError(*_SIMULATED[kind]), after.get(kind)


def error_number(error: BaseException) -> object:
    """The error number that MySQL's drivers put first; None for an error without arguments."""
    return error.args[0] if error.args else None
