"""The sessions of a worker's own threads: the server ends one that idles within a transaction.

Of a process that is frozen (SIGSTOP, a paused machine, a host that was cut off) the locks would stay until it goes on.
Sessions of jobs are left alone: a finish() block may take as long as it wants. Those of relays, which run subscribers,
have the limit in their claims only. docs/explanation/locking.md says how each server does it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue.db import vendor

#: between two statements of a transaction of ours are milliseconds
IDLE_SECONDS = 5.0


class _Own(threading.local):
    """The alias of which the sessions of this thread are ours."""

    alias = ""


_own = _Own()


def limit_idle_transactions(using: str) -> None:
    """Limit the sessions to `using` that this thread has and opens. It must run no code of the project."""
    _own.alias = using
    connection_created.connect(_opened, dispatch_uid="jobqueue.idle_limit")
    connection = connections[using]
    if connection.connection is not None:
        _limit(connection)


def _opened(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if connection.alias == _own.alias:
        _limit(connection)


def _limit(connection: BaseDatabaseWrapper) -> None:
    # A session without the limit works, and one that is lost already is noticed by the next statement.
    with suppress(Error):
        vendor(connection.alias).limit_idle_transactions(connection, IDLE_SECONDS)
