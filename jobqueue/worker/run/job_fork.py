"""A process that a job has forked: it may do the job's work, and nothing in the worker's name."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from django.db import connections

from jobqueue.worker.run import streams

# Signals that mean something to the worker; to anybody else what they mean to every program.
OURS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)

_forked = False
#: never closed: the sockets belong to the parent too, and a goodbye on one of them would end its session
_kept: list[Any] = []


def guard() -> None:
    """Call once in a child, before it runs jobs."""
    os.register_at_fork(after_in_child=_disown)


def is_forked() -> bool:
    """Whether this process is a fork of a worker's child: its job has a second life here, its lease has not."""
    return _forked


def leave(error: BaseException | None) -> NoReturn:
    """End this process as sys.exit() in a body, its end, or an exception would end any other program."""
    status: Any = 0
    if isinstance(error, SystemExit):
        status = error.code if error.code is None or isinstance(error.code, int) else 1
    elif error is not None:
        status = 1
        with suppress(BaseException):
            traceback.print_exception(error)
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    # Not sys.exit: the queue of waiting leases, the claimer's and the settler's connections are here as copies.
    os._exit((status or 0) & 0xFF)


def _disown() -> None:
    global _forked
    _forked = True
    streams.replace()
    # Connections of threads that do not exist here: collecting one as garbage would close the parent's session.
    gc.freeze()
    for connection in connections.all(initialized_only=True):
        _kept.append(connection)
        del connections[connection.alias]
    # Its pipe leads into the parent.
    signal.set_wakeup_fd(-1)
    for number in OURS:
        signal.signal(number, signal.SIG_DFL)
