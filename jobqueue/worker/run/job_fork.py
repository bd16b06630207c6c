"""A process that a job has forked: it may do the job's work, but it does not act for the worker.

It gets standard streams and log files of its own: the copies may be locked by a thread that does not exist in the fork.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

from django.db import connections

from jobqueue.worker.run import call_threads

# Signals that have a meaning of their own in a worker; in the fork they get their default meaning.
OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)
STANDARD = ("stdout", "stderr", "__stdout__", "__stderr__")

_forked = False
#: never closed: the parent uses the same sockets, and closing one properly would end the parent's session
_kept: list[object] = []
#: never closed or flushed: a thread of the parent may have held their locks during the fork
_copies: list[object] = []


def guard() -> None:
    """Call once in a child, before it runs jobs."""
    os.register_at_fork(after_in_child=_disown)
    call_threads.serve_other_threads()


def is_forked() -> bool:
    """Whether this process is a fork of a worker's child: the job continues here, but without its lease."""
    return _forked


def leave(error: BaseException | None) -> NoReturn:
    """End this process as any program ends: by sys.exit(), by an exception, or by the end of its code."""
    status: int | None = 0
    if isinstance(error, SystemExit):
        status = error.code if error.code is None or isinstance(error.code, int) else 1
    elif error is not None:
        status = 1
        with suppress(BaseException):
            traceback.print_exception(error)
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    # Not sys.exit: the fork has copies of the waiting leases and of the connections of claimer and settler.
    os._exit((status or 0) & 0xFF)


def _disown() -> None:
    global _forked
    _forked = True
    _replace_streams()
    call_threads.after_fork()
    # Garbage collection of a connection of another thread would close the parent's session.
    gc.freeze()
    for connection in connections.all(initialized_only=True):
        _kept.append(connection)
        del connections[connection.alias]
    # Its pipe leads to the parent.
    signal.set_wakeup_fd(-1)
    for number in OURS:
        signal.signal(number, signal.SIG_DFL)


def _replace_streams() -> None:
    """Replace the copied streams by new ones over the same files.

    A buffered stream to which another thread wrote at the moment of the fork stays locked in the copy: the next
    print(), log record or flush would hang. What the parent had not written yet is written by the parent. Streams that
    a job has put there (io.StringIO), and streams without a buffer, are kept.
    """
    fresh: dict[int, object] = {}
    for name in STANDARD:
        setattr(sys, name, _fresh(getattr(sys, name), fresh))
    for handler in _stream_handlers():
        # Not setStream(): it flushes the old one.
        handler.stream = _fresh(handler.stream, fresh)


def _fresh(stream: object, fresh: dict[int, object]) -> object:
    """The replacement of `stream`, the same for all places in which it is used."""
    if id(stream) not in fresh:
        fresh[id(stream)] = _reopened(stream)
    return fresh[id(stream)]


def _reopened(stream: object) -> object:
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
        # Closed: no thread can write to it or hold its lock.
        return stream
    _copies.append(stream)
    return text


def _stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", ())}:
        if isinstance(handler, logging.StreamHandler):
            yield handler
