"""The one place that asks which database this is.

vendor(using) is its Dialect; `.locks` is its LockDialect, `.diagnostics` its Diagnostics: docs/adr/0017.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import Lock

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import Dialect, Fault, Problem
from jobqueue.db.mariadb.dialect import MariaDB
from jobqueue.db.mysql.dialect import MySQL
from jobqueue.db.postgresql.dialect import PostgreSQL
from jobqueue.db.sqlite.dialect import SQLite

__all__ = ["Dialect", "Fault", "Problem", "fault_vendor", "one_writer", "vendor", "vendor_of"]

_MYSQL, _MARIADB, _POSTGRESQL, _SQLITE = MySQL(), MariaDB(), PostgreSQL(), SQLite()
_UNKNOWN = Dialect()


def vendor(using: str) -> Dialect:
    """The dialect of database alias `using`. May open the connection (MariaDB and MySQL share a backend)."""
    return vendor_of(connections[using])


def fault_vendor(using: str) -> Dialect:
    """The dialect that reads errors and sessions of `using`, found without a connection, which may be broken."""
    return _MYSQL if connections[using].vendor == "mysql" else vendor_of(connections[using])


def one_writer(using: str) -> AbstractContextManager[object]:
    """A new lock for those threads of a process that write to `using`, where the database has one writer at a time.

    There a second connection would wait in sleeps that grow, long after the first is ready.
    """
    return Lock() if fault_vendor(using).single_writer else nullcontext()


def vendor_of(connection: BaseDatabaseWrapper) -> Dialect:
    """The dialect of a connection."""
    if connection.vendor == "mysql":
        return _MARIADB if getattr(connection, "mysql_is_mariadb", False) else _MYSQL
    return {"postgresql": _POSTGRESQL, "sqlite": _SQLITE}.get(connection.vendor, _UNKNOWN)
