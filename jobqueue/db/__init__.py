"""The one place that asks which database this is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import Fault, Vendor
from jobqueue.db.mariadb.vendor import MariaDB
from jobqueue.db.mysql.vendor import MySQL
from jobqueue.db.postgresql.vendor import PostgreSQL
from jobqueue.db.sqlite import SQLite

__all__ = ["Fault", "Vendor", "fault_vendor", "one_writer", "vendor", "vendor_of"]

_MYSQL, _MARIADB, _POSTGRESQL, _SQLITE = MySQL(), MariaDB(), PostgreSQL(), SQLite()
_UNKNOWN = Vendor()


def vendor(using: str) -> Vendor:
    """The Vendor of database alias `using`. May open the connection (MariaDB and MySQL share a backend)."""
    return vendor_of(connections[using])


def fault_vendor(using: str) -> Vendor:
    """The Vendor that reads errors of `using`, found without touching a connection that may be broken."""
    return _MYSQL if connections[using].vendor == "mysql" else vendor_of(connections[using])


def one_writer(using: str) -> AbstractContextManager[Any]:
    """What threads of one process hold while they write to `using`: a lock where the database has one writer.

    There a second connection would wait in sleeps that grow, long after the first is ready.
    """
    return Lock() if fault_vendor(using).single_writer else nullcontext()


def vendor_of(connection: BaseDatabaseWrapper) -> Vendor:
    """The Vendor of a connection."""
    if connection.vendor == "mysql":
        return _MARIADB if getattr(connection, "mysql_is_mariadb", False) else _MYSQL
    return {"postgresql": _POSTGRESQL, "sqlite": _SQLITE}.get(connection.vendor, _UNKNOWN)
