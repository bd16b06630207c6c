"""Limits of a session's time on MySQL and MariaDB, by variables of the session."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.sockets import one_value, restored

#: an attribute of connections: a session, and what it has between transactions
_USUAL = "_jobqueue_usual_limit"


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
    wrapper: Any = connection
    wrapper._set_autocommit = _limiting(wrapper, "wait_timeout", seconds)
    wrapper._set_autocommit(True)


@contextmanager
def transactions_limited(connection: BaseDatabaseWrapper, variable: str, seconds: float) -> Iterator[None]:
    """A block in which `variable` limits how long the session may idle within a transaction."""
    wrapper: Any = connection
    if "_set_autocommit" in vars(wrapper):
        yield
        return
    wrapper._set_autocommit = _limiting(wrapper, variable, seconds)
    try:
        yield
    finally:
        del wrapper._set_autocommit


def _limiting(wrapper: Any, variable: str, seconds: float) -> Callable[[bool], None]:
    """_set_autocommit() of this session, with the limit in the same statement."""
    session, plain = wrapper.connection, type(wrapper)._set_autocommit
    usual = _usual(wrapper, variable)
    short = min(usual or math.inf, math.ceil(seconds))
    begin, end = (f"SET autocommit = {on}, SESSION {variable} = {limit}" for on, limit in ((0, short), (1, usual)))

    def set_autocommit(on: bool) -> None:
        if wrapper.connection is session:
            # Without Django's cursor, as its own statement about autocommit.
            with wrapper.wrap_database_errors, session.cursor() as cursor:
                cursor.execute(end if on else begin)
        # The driver sends nothing where autocommit is as it is to be.
        plain(wrapper, on)

    return set_autocommit


def _usual(wrapper: Any, variable: str) -> int:
    """What the session has between transactions, asked for once in each session."""
    session, value = vars(wrapper).get(_USUAL, (None, 0))
    if session is not wrapper.connection:
        value = int(one_value(wrapper, f"SELECT @@SESSION.{variable}"))
        setattr(wrapper, _USUAL, (wrapper.connection, value))
    return int(value)
