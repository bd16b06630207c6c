"""What the driver knows of a PostgreSQL session and of an error in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import Problem
from jobqueue.db.sockets import one_value, restored

#: of psycopg_pool, for Django's option "pool": no connection was free in time, or too many threads wait for one
_POOL_ERRORS = {"PoolTimeout", "TooManyRequests"}
_FULL = (
    "too many clients already",
    "too many connections for ",
    "remaining connection slots are reserved",
    "no more connections allowed",
)


def sqlstate(error: BaseException) -> str | None:
    """SQLSTATE of the driver's exception; None where the server did not answer."""
    found: str | None = getattr(error.__cause__, "sqlstate", None)
    return found


def driver_problem(driver: Any) -> Problem | None:
    """What `check` reports of the driver's module: psycopg2 and old versions have other names for errors."""
    name, version = driver.__name__, str(driver.__version__)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if name == "psycopg" and numbers >= (3, 2):
        return None
    return Problem(
        "E015",
        f"The driver is {name} {version.split(' ')[0]}: what its errors mean is not known, so a deadlock or a refused "
        "lock would count as a lost connection.",
        'pip install "psycopg[binary]>=3.2". Django takes it as soon as it is installed.',
    )


def has_no_connection(error: BaseException) -> bool:
    """Whether the server, the account or a pool of psycopg had no connection left."""
    if sqlstate(error) == "53300" or type(error.__cause__).__name__ in _POOL_ERRORS:
        return True
    # When a login is refused, psycopg has no code, only the words of libpq.
    return sqlstate(error) is None and any(words in str(error) for words in _FULL)


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """A pooler such as PgBouncer makes up the number that the driver receives at the login."""
    connection.ensure_connection()
    session: Any = connection.connection
    return bool(one_value(connection, "SELECT pg_backend_pid()") != session.info.backend_pid)


@contextmanager
def limited(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """A block in a transaction, or savepoint, of its own whose statements are stopped after `seconds` each, or sooner.

    A stricter limit of the session stays.

    SET LOCAL, so that no pooler gives the limit to another client; an error leaves the caller's transaction usable.
    """
    with transaction.atomic(using=connection.alias):
        before = int(one_value(connection, "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"))
        limit = max(1, round(1000 * seconds))
        one_value(connection, _SET, [f"{min(before, limit) if before else limit}ms"])
        yield
        one_value(connection, _SET, [f"{before}ms"])


@contextmanager
def limited_waits(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """A block whose statements wait for a lock for `seconds` at most, by lock_timeout of the session.

    No transaction: the block may have several of its own. Behind a pooler there is no limit, because other clients
    could get the session.
    """
    if connection.settings_dict.get("OPTIONS", {}).get("pool") or is_pooled(connection):
        yield
        return
    before = str(one_value(connection, "SELECT current_setting('lock_timeout')"))
    one_value(connection, _SET_WAITS, [max(1, round(1000 * seconds))] * 2)
    with restored(connection, lambda: one_value(connection, _RESTORE_WAITS, [before])):
        yield


_SET = "SELECT set_config('statement_timeout', %s, true)"
_RESTORE_WAITS = "SELECT set_config('lock_timeout', %s, false)"
_SET_WAITS = (
    "SELECT set_config('lock_timeout', (CASE WHEN setting::bigint BETWEEN 1 AND %s THEN setting::bigint "
    "ELSE %s END)::text || 'ms', false) FROM pg_settings WHERE name = 'lock_timeout'"
)
