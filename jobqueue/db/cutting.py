"""End the session of a connection that a thread uses which is not to be heard of again."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper


def cut(connection: BaseDatabaseWrapper) -> None:
    """Let the server undo what is open in this session, called by another thread than the one that uses it.

    The socket is shut down; the driver's object is left alone, for it may be in use. The thread's next statement fails.
    """
    session: Any = connection.connection
    if session is None:
        return
    with suppress(Exception):
        if hasattr(session, "fileno"):
            with socket.socket(fileno=os.dup(session.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        else:
            # SQLite: no server, and its own lock makes this safe.
            session.close()
