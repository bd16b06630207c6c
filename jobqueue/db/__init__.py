"""The one place that asks which database this is."""

from __future__ import annotations

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import Fault, Vendor
from jobqueue.db.mariadb import MariaDB
from jobqueue.db.mysql import MySQL
from jobqueue.db.postgresql import PostgreSQL
from jobqueue.db.sqlite import SQLite

__all__ = ["Fault", "Vendor", "fault_vendor", "vendor", "vendor_of"]

_MYSQL, _MARIADB, _POSTGRESQL, _SQLITE = MySQL(), MariaDB(), PostgreSQL(), SQLite()
_UNKNOWN = Vendor()


def vendor(using: str) -> Vendor:
    """The Vendor of database alias `using`. May open the connection (MariaDB and MySQL share a backend)."""
    return vendor_of(connections[using])


def fault_vendor(using: str) -> Vendor:
    """The Vendor that reads errors of `using`, found without touching a connection that may be broken."""
    return _MYSQL if connections[using].vendor == "mysql" else vendor_of(connections[using])


def vendor_of(connection: BaseDatabaseWrapper) -> Vendor:
    """The Vendor of a connection."""
    if connection.vendor == "mysql":
        return _MARIADB if getattr(connection, "mysql_is_mariadb", False) else _MYSQL
    return {"postgresql": _POSTGRESQL, "sqlite": _SQLITE}.get(connection.vendor, _UNKNOWN)
