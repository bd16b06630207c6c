"""A limit of time for statements of SQLite, which has none itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupted_after(session: Any, seconds: float) -> Iterator[None]:
    """A block in which the statement of `session`, a driver's connection, that runs after `seconds` is interrupted."""
    ending, over = threading.Lock(), threading.Event()

    def interrupt() -> None:
        # With the lock: a statement behind the block must not be interrupted.
        with ending:
            if not over.is_set():
                session.interrupt()

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with ending:
            over.set()
        timer.cancel()
