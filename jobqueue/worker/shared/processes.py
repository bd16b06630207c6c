"""Start processes with fork, signal them, see whether one is alive, and print the stacks of its threads."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from jobqueue import otel
from jobqueue.backoff import Backoff

logger = logging.getLogger("jobqueue.worker")

PAUSE = Backoff(base_seconds=0.1, cap_seconds=5.0)
# Refusals further apart than this are two shortages, and each is logged.
SHORTAGE_SECONDS = 60.0
DEFAULTED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD)
# Meant for the supervisor alone, but a terminal that closes, or pkill, sends them to the whole group. They get an empty
# handler: programs that a job executes would inherit SIG_IGN.
PASSED_OVER = (signal.SIGHUP, signal.SIGUSR1)
HANDLED = {*DEFAULTED, *PASSED_OVER}


class Forker:
    """fork() for the supervisor. After a refusal it waits 0.1 s, then twice as long each time, at most 5 s."""

    def __init__(self) -> None:
        self._refusals = 0
        self._refused_at, self._not_before = -SHORTAGE_SECONDS, 0.0

    @property
    def ready(self) -> bool:
        """Whether the pause after the last refusal is over."""
        return time.monotonic() >= self._not_before

    def fork(self, target: Callable[..., int], *args: object) -> int:
        """Return the id of a new process that runs target(*args) and exits with its result; 0 after a refusal."""
        _flush()
        # Blocked until the new process has handlers of its own: it would run the supervisor's handlers.
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
        """Record that the system had no room for a process or for its threads: the next try has to wait."""
        now = time.monotonic()
        if now - self._refused_at >= SHORTAGE_SECONDS:
            self._refusals = 0
            logger.error("no process can be started: %s. Trying again until there is room; raise the limit.", why)
        self._refused_at = now
        self._refusals += 1
        self._not_before = now + PAUSE.delay_seconds(self._refusals)


def _flush() -> None:
    # The new process would also write what these buffers hold. A flush fails if nobody reads or the disk is full.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _be(target: Callable[..., int], args: tuple[object, ...], mask: set[int | signal.Signals]) -> None:
    """Run a forked process; does not return."""
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
        # Exit handlers, as that of OpenTelemetry's provider, do not run.
        with suppress(Exception):
            otel.flush()
        # Not sys.exit: it would wait for threads that hang in a job, and run the parent's exit handlers.
        os._exit(status)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to process `pid`, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_child(pid: int, seconds: float) -> None:
    """Wait up to `seconds` for the end of child process `pid`, then kill it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.01)
    kill(pid)


def pid_exists(pid: int) -> bool:
    """Whether process `pid` exists on this machine, whoever owns it; False for a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # The state follows the last parenthesis; the program's name before it may contain anything.
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 without /proc, and if the process is gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def print_at_sigquit(on_signal: Callable[[int], None] | None = None) -> None:
    """From now on SIGQUIT prints the stack of every thread. Call once, in the main thread.

    A separate thread prints, and holds the GIL meanwhile, so no stack changes; it also works while the main thread
    waits in C. faulthandler.register() reads without the GIL, and can crash the process if a thread runs Python code at
    that moment. A body that holds the GIL in C delays the output.

    The same thread calls on_signal(number) for every signal that has a handler, also while the main thread waits in C
    and its handlers have to wait.
    """
    if not hasattr(signal, "SIGQUIT"):
        return
    signal.signal(signal.SIGQUIT, lambda *_: None)
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        threading.Thread(target=_serve_signals, args=[read, on_signal], name="stack-dump", daemon=True).start()
    except RuntimeError:
        # The system has no room for a thread; this process will end soon, because it needs others.
        return
    # The C handler writes at once, whatever the main thread does: one byte for each signal, its number.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)


def _serve_signals(pipe: int, on_signal: Callable[[int], None] | None) -> None:
    while numbers := os.read(pipe, 4096):
        if signal.SIGQUIT in numbers:
            # A job may have closed stderr, or nobody reads it.
            with suppress(Exception):
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        if on_signal is not None:
            for number in numbers:
                on_signal(number)
