"""MySQL's limit for a session that idles, wait_timeout, as one that counts only while a transaction is open.

Django begins and ends a transaction with a statement that sets autocommit. The limit is set by that same statement, so
it costs no round trip. Between transactions a session may idle as before: if the server ended it there, the worker
would have to open it again, perhaps when the server has no connection left.
"""

from __future__ import annotations

import math
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.sockets import one_value


def limit_in_transactions(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Have the server end the session of `connection` if it idles for so long within a transaction.

    In whole seconds; a shorter wait_timeout of the session stays. Raises the server's error if it does not take this.
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
