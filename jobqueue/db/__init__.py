"""The one place that asks which database this is: dialects, fields, prepared statements, retries.

vendor(using) is the Dialect of a database; `.locks` is its LockDialect, `.diagnostics` its Diagnostics (ADR 0017). Each
database has a package with the same modules: features, errors, statements, locks, diagnostics; another one is such a
package, its import and its entry in _DIALECTS. No table or column of a feature is named here. Every room may import
this one; it runs in each process and thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import GONE_KINDS, Dialect, Problem
from jobqueue.db.mariadb.features import MariaDB
from jobqueue.db.mysql.features import MySQL
from jobqueue.db.postgresql.features import PostgreSQL
from jobqueue.db.sqlite.features import SQLite
from jobqueue.failures.codes import BY_CODE, REFUSALS

__all__ = [
    "Dialect", "Problem", "fault_vendor", "is_lost_connection", "is_refusal", "one_writer", "options_problems",
    "supported", "vendor", "vendor_of",
]  # fmt: skip

#: by Django's name of the vendor; MariaDB has that of MySQL
_DIALECTS = {"mysql": MySQL(), "mariadb": MariaDB(), "postgresql": PostgreSQL(), "sqlite": SQLite()}
_UNKNOWN = Dialect()
for _dialect in _DIALECTS.values():
    BY_CODE.append(_dialect.cause)
    REFUSALS.extend(_dialect.refusals)


def vendor(using: str) -> Dialect:
    """The dialect of database alias `using`. May open the connection (MariaDB and MySQL share a backend)."""
    return vendor_of(connections[using])


def fault_vendor(using: str) -> Dialect:
    """The dialect that reads errors and sessions of `using`, found without a connection, which may be broken."""
    return _DIALECTS.get(connections[using].vendor, _UNKNOWN)


def supported() -> str:
    """The databases that can hold the queue, in words: MySQL 8.0.17+, MariaDB 10.6+, ..."""
    *names, last = (dialect.requirement() for dialect in _DIALECTS.values())
    return f"{', '.join(names)} or {last}"


def options_problems(alias: str, entry: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with an entry of DATABASES for a queue; its driver need not be installed."""
    for name, dialect in _DIALECTS.items():
        if name in entry.get("ENGINE", ""):
            yield from dialect.options_problems(alias, entry.get("OPTIONS") or {}, str(entry.get("NAME", "")))


def is_refusal(error: BaseException | None, using: str) -> bool:
    """Whether the database refused a statement for good; False for faults that pass, and for other exceptions."""
    return isinstance(error, Error) and fault_vendor(using).error_kind(error) is None


def is_lost_connection(error: BaseException | None, using: str) -> bool:
    """Whether the connection was lost: perhaps the database is unreachable."""
    return isinstance(error, Error) and fault_vendor(using).error_kind(error) in GONE_KINDS


def one_writer(using: str) -> AbstractContextManager[object]:
    """A new lock for those threads of a process that write to `using`, where the database has one writer at a time.

    There a second connection would wait in sleeps that grow, long after the first is ready.
    """
    return Lock() if fault_vendor(using).single_writer else nullcontext()


def vendor_of(connection: BaseDatabaseWrapper) -> Dialect:
    is_mariadb = connection.vendor == "mysql" and getattr(connection, "mysql_is_mariadb", False)
    return _DIALECTS.get("mariadb" if is_mariadb else connection.vendor, _UNKNOWN)
