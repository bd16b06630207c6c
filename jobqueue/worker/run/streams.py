"""The standard streams and log files of a forked process: its own, not copies that another thread may hold."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

STANDARD = ("stdout", "stderr", "__stdout__", "__stderr__")

#: never closed or flushed: a thread of the parent may have been inside when they were copied
_copies: list[Any] = []


def replace() -> None:
    """Call in a fork, at once: streams over the same files take the places of the copied ones.

    A buffered stream that another thread writes to at the moment of the fork is locked in the copy for ever: the first
    print(), log record or flush would hang. What the parent had not written yet stays the parent's. Streams that a job
    has put there itself (io.StringIO), and those that do not buffer, stay as they are.
    """
    fresh: dict[int, Any] = {}
    for name in STANDARD:
        setattr(sys, name, _fresh(getattr(sys, name), fresh))
    for handler in _stream_handlers():
        # Not setStream(): it flushes the old one.
        handler.stream = _fresh(handler.stream, fresh)


def _fresh(stream: Any, fresh: dict[int, Any]) -> Any:
    """The stream that takes the place of `stream`; one for all places where it stands."""
    if id(stream) not in fresh:
        fresh[id(stream)] = _reopened(stream)
    return fresh[id(stream)]


def _reopened(stream: Any) -> Any:
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(stream.buffer, io.BufferedWriter):
        return stream
    try:
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        text = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
    except (OSError, ValueError):
        # Closed: nobody can write to it, and nobody can hold it.
        return stream
    _copies.append(stream)
    return text


def _stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", ())}:
        if isinstance(handler, logging.StreamHandler):
            yield handler
