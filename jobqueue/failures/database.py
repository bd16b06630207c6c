"""The cause of a database error: by the server's number, and by the class of PEP 249 where there is none."""

from __future__ import annotations

from jobqueue.failures.vocabulary import FailureCause

DATA, DEPENDENCY, RESOURCE = FailureCause.DATA, FailureCause.DEPENDENCY, FailureCause.RESOURCE

_MYSQL_RESOURCE = {
    # locks: wait timeout, deadlock, table of locks full, row or table changed, user lock, NOWAIT, certification
    1205, 1213, 1206, 1020, 1412, 3058, 3572, 3101,
    # connections and threads: too many, of this user, cannot create a thread, too many prepared statements
    1040, 1203, 1226, 1135, 1461,
    # memory, disk, open files: of the server
    1021, 1026, 1030, 1037, 1038, 1041, 1114, 1016, 1023, 1028, 5, 28,
    # a limit on the time of a statement, and KILL QUERY
    3024, 1969, 1317, 1907, 2008,
    # a file cannot be locked; too many transactions at once
    1015, 1637,
}  # fmt: skip
_MYSQL_DEPENDENCY = {
    # access refused to the host, the user, a database, a table
    1044, 1045, 1129, 1130, 1142, 1143, 1227, 1698, 1820, 1862, 3118, 4151,
    # shutting down, read-only (a replica after a failover), not part of its cluster, offline
    1053, 1077, 1079, 1290, 1792, 1836, 1036, 1047, 1049, 3032, 3100,
    # a table is damaged
    1194, 1195,
    # the connection broke, or was killed
    1042, 1043, 1080, 1152, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1927, 3168, 3169, 3170, 4031,
}  # fmt: skip
# Numbers from 2000 to 2999 are the client's: it could not reach the server. Except for what it was given.
_MYSQL_CLIENT_DATA = {2014, 2020, 2029, 2030, 2031, 2032, 2033, 2034, 2036}

#: SQLSTATE, or its beginning; the longest that fits decides. Unlisted: the server refused the statement or its values
_SQLSTATES = {
    "08": DEPENDENCY, "28": DEPENDENCY, "57P": DEPENDENCY, "58": DEPENDENCY, "XX": DEPENDENCY, "F0": DEPENDENCY,
    "25006": DEPENDENCY, "40003": DEPENDENCY, "42501": DEPENDENCY, "72": DEPENDENCY, "3D": DEPENDENCY,
    "40": RESOURCE, "40002": DATA, "53": RESOURCE, "55": RESOURCE, "57": RESOURCE, "54001": RESOURCE,
    "25P03": RESOURCE, "25P04": RESOURCE,
    "HYT": RESOURCE, "HY000": None, "HY": None,
}  # fmt: skip

#: primary result codes; IOERR, CANTOPEN, READONLY and PERM are about the disk of this host
_SQLITE_RESOURCE = {3, 5, 6, 7, 8, 9, 10, 13, 14, 15}
_SQLITE_OTHER = {1: DATA, 11: DATA, 17: DATA, 18: DATA, 19: DATA, 20: DATA, 21: DATA, 23: DATA, 25: DATA, 26: DATA}
#: a connection that was refused carries no SQLSTATE in some drivers
_FULL = ("too many clients", "too many connections", "remaining connection slots", "database is locked")

#: of psycopg_pool, which Django uses: no connection of the pool was free in time
_POOL = {"PoolTimeout", "TooManyRequests"}

_BY_CLASS = {
    "IntegrityError": DATA,
    "DataError": DATA,
    "ProgrammingError": DATA,
    "NotSupportedError": DATA,
    "OperationalError": DEPENDENCY,
    "InterfaceError": DEPENDENCY,
    "InternalError": DEPENDENCY,
    "DatabaseError": DEPENDENCY,
    "Error": DEPENDENCY,
}


def by_database(error: BaseException) -> FailureCause | None:
    """The cause of an error of a driver, or of Django's or SQLAlchemy's error that wraps one."""
    chain = _wrapped(error)
    if any(type(found).__name__ in _POOL for found in chain):
        return RESOURCE
    for found in chain:
        if (cause := _by_number(found)) is not None:
            return cause
    if any(words in str(error) for words in _FULL):
        return RESOURCE
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_CLASS:
            return _BY_CLASS[kind.__name__]
    return DEPENDENCY


def code_of(error: BaseException) -> str:
    """The number or SQLSTATE that a driver has given such an error; "" if there is none."""
    for found in _wrapped(error):
        numbers = (getattr(found, "errno", None), *found.args[:1], getattr(found, "sqlite_errorcode", None))
        states = (getattr(found, "sqlstate", None), getattr(found, "pgcode", None))
        codes = [str(number) for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
        codes += [state for state in states if isinstance(state, str) and state]
        if codes:
            return codes[0]
    return ""


def _wrapped(error: BaseException) -> list[BaseException]:
    """An error of a driver, or one that wraps it, and what it wraps."""
    others = (error.__cause__, getattr(error, "orig", None))
    return [error, *(other for other in others if isinstance(other, BaseException))]


def _by_number(error: BaseException) -> FailureCause | None:
    sqlite = getattr(error, "sqlite_errorcode", None)
    if isinstance(sqlite, int):
        return RESOURCE if sqlite & 0xFF in _SQLITE_RESOURCE else _SQLITE_OTHER.get(sqlite & 0xFF)
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        # MySQL's own driver has both; its number says more.
        if isinstance(state, str) and not isinstance(getattr(error, "errno", None), int):
            return _by_sqlstate(state)
    number = getattr(error, "errno", None)
    if not isinstance(number, int):
        number = error.args[0] if error.args else None
    return _by_mysql(number) if isinstance(number, int) and not isinstance(number, bool) else None


def _by_sqlstate(state: str) -> FailureCause | None:
    for length in range(len(state), 1, -1):
        if state[:length] in _SQLSTATES:
            return _SQLSTATES[state[:length]]
    return DATA


def _by_mysql(number: int) -> FailureCause | None:
    if number in _MYSQL_RESOURCE:
        return RESOURCE
    if number in _MYSQL_DEPENDENCY:
        return DEPENDENCY
    if 2000 <= number < 3000:
        return DATA if number in _MYSQL_CLIENT_DATA else DEPENDENCY
    return DATA if 1000 <= number < 6000 else None
