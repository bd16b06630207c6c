"""Limits of a session's time on MySQL and MariaDB, by variables of the session."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.sockets import one_value, restored


@contextmanager
def limit_by_variables(connection: BaseDatabaseWrapper, limits: Mapping[str, float]) -> Iterator[None]:
    """A block in which these variables of the session are at most so much; one that is 0 means no limit."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'@@SESSION.{name}' for name in limits)}")
        before = dict(zip(limits, map(float, cursor.fetchone()), strict=True))

    def assign(values: Mapping[str, float]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET " + ", ".join(f"SESSION {name} = {value:.15g}" for name, value in values.items()))

    assign({name: min(before[name], limit) if before[name] else limit for name, limit in limits.items()})
    with restored(connection, lambda: assign(before)):
        yield


def limit_in_transactions(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Have the server end the session of `connection` if it idles for so long within a transaction.

    In whole seconds; a shorter wait_timeout of the session stays. Raises the server's error if it does not take this.

    Django begins and ends a transaction with a statement that sets autocommit. The limit is set by that same statement,
    so it costs no round trip. Between transactions a session may idle as before: if the server ended it there, the
    worker would have to open it again, perhaps when the server has no connection left.
    """
    usual = int(one_value(connection, "SELECT @@SESSION.wait_timeout"))
    short = min(usual, math.ceil(seconds))
    begin, end = (f"SET autocommit = {on}, SESSION wait_timeout = {limit}" for on, limit in ((0, short), (1, usual)))
    wrapper: Any = connection
    session, plain = wrapper.connection, type(wrapper)._set_autocommit

    def send(statement: str) -> None:
        # Without Django's cursor, as its own statement about autocommit.
        with wrapper.wrap_database_errors, session.cursor() as cursor:
            cursor.execute(statement)

    def set_autocommit(on: bool) -> None:
        if wrapper.connection is session:
            send(end if on else begin)
        # The driver sends nothing where autocommit is as it is to be.
        plain(wrapper, on)

    send(end)
    wrapper._set_autocommit = set_autocommit
