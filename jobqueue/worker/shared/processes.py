"""Start processes with fork, and see whether a process is alive."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

logger = logging.getLogger("jobqueue.worker")

BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 0.1, 5.0
# Refusals further apart than this are two shortages, each worth a line.
SHORTAGE_SECONDS = 60.0
DEFAULTED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD)
# For the supervisor alone, and sent to the whole group by a terminal that closes or by pkill. Not ignored: what a job
# executes would inherit that.
PASSED_OVER = (signal.SIGHUP, signal.SIGUSR1)
HANDLED = {*DEFAULTED, *PASSED_OVER}


class Forker:
    """fork() for the supervisor; after a refusal it waits 0.1 s, then twice as long each time, 5 s at most."""

    def __init__(self) -> None:
        self._refusals = 0
        self._refused_at, self._not_before = -SHORTAGE_SECONDS, 0.0

    @property
    def ready(self) -> bool:
        """Whether it makes sense to try."""
        return time.monotonic() >= self._not_before

    def fork(self, target: Callable[..., int], *args: Any) -> int:
        """The id of a new process that runs target(*args) and exits with what it returns; 0 when there is no room."""
        _flush()
        # Held back until the new process has its own: it would answer them with the supervisor's, in its name.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            pid = os.fork()
            if not pid:
                _be(target, args, before)
        except OSError as error:
            self.refuse(error)
            return 0
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid

    def refuse(self, why: object) -> None:
        """The system had no room for a process, or for its threads: wait before the next try."""
        now = time.monotonic()
        if now - self._refused_at >= SHORTAGE_SECONDS:
            self._refusals = 0
            logger.error("no process can be started: %s. Trying again until there is room; raise the limit.", why)
        self._refused_at = now
        delay = BACKOFF_SECONDS * 2 ** min(self._refusals, 10)
        self._not_before = now + min(BACKOFF_SECONDS_MAX, delay) * random.uniform(0.8, 1.0)
        self._refusals += 1


def _flush() -> None:
    # What waits here would be written by the new process too. Nobody may be reading, or the disk may be full.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _be(target: Callable[..., int], args: tuple[Any, ...], mask: set[int | signal.Signals]) -> None:
    """The life of a forked process; does not return."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in DEFAULTED:
            signal.signal(number, signal.SIG_DFL)
        for number in PASSED_OVER:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        status = target(*args)
    except BaseException:
        logger.exception("process %d ends by an unexpected error", os.getpid())
    finally:
        _flush()
        # Not sys.exit: threads that hang in a job, and the parent's exit handlers, must not run here.
        os._exit(status)


def pid_exists(pid: int) -> bool:
    """Whether process `pid` runs or may run again on this machine, whoever owns it; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # After the last parenthesis: the program's name before it may hold anything.
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True
