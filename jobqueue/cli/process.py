"""What a command sets up that runs as a process of its own: standard streams, signals, log lines, a pid file."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.color import Style
from django.utils.log import RequireDebugTrue

from jobqueue.base.compat import signals as task_signals
from jobqueue.cli.arguments import USAGE
from jobqueue.log_format import JsonFormatter, TextFormatter, WithoutLogger, connect_jobs
from jobqueue.worker.shared.processes import pid_exists


def open_missing_streams() -> None:
    """Open /dev/null for each of the descriptors 0, 1 and 2 that is closed.

    Otherwise the next socket gets one of these numbers, and a library that writes to stderr writes into that socket.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


class StopFlag:
    """A threading.Event whose set() may be called in a signal handler.

    Event.set() takes a lock. If the signal has interrupted wait() while it held that lock, set() waits for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakes = threading.Lock()
        self._wakes.acquire()

    def is_set(self) -> bool:
        """Whether set() was called."""
        return self._is_set

    def set(self) -> None:
        """End the current wait() and all later ones."""
        self._is_set = True
        # It is released already.
        with suppress(RuntimeError):
            self._wakes.release()

    def wait(self, seconds: float) -> bool:
        """Return is_set() as soon as it is True, or after `seconds`."""
        if not self._is_set and self._wakes.acquire(timeout=seconds):
            self.set()  # for other threads that wait
        return self._is_set

    def catch_signals(self) -> None:
        """Let SIGTERM and SIGINT set it from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.set())


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, and drops a line that cannot be written.

    The reader may be gone, a job may have closed the stream, or a signal may arrive during a write. The report of such
    an error, on stderr, can fail too, and must not raise in the code that logs. Both show the exceptions of jobs, whose
    attributes may raise, SystemExit too.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except SystemExit:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(Exception, SystemExit):
            super().handleError(record)


def set_up_logging(verbosity: int, log_format: str, style: Style) -> None:
    """Write the log lines of the logger "jobqueue" to stderr, unless the project has configured that logger.

    Verbosity 0 logs warnings and errors, 1 also a line per job. 2 adds tracebacks of all failed attempts (as DEBUG
    does), claims, renewals and wake-ups; 3 adds the logger "jobqueue.detail": looks that found nothing, and writes.
    """
    logger = logging.getLogger("jobqueue")
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    logger.setLevel(level)
    logging.getLogger("jobqueue.detail").setLevel(logging.NOTSET if verbosity > 2 else logging.INFO)
    if level <= logging.INFO:
        connect_jobs(tracebacks=verbosity > 1 or settings.DEBUG)
    if not logger.handlers:
        handler = LogHandler(sys.stderr)
        as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
        handler.setFormatter(JsonFormatter() if as_json else TextFormatter(style if sys.stderr.isatty() else None))
        logger.addHandler(handler)
        logger.propagate = False
        if level <= logging.INFO:
            _silence_terminal(task_signals.logger)
    # Django logs here what receivers of signals raise; without DEBUG its default LOGGING does not show that.
    receivers = logging.getLogger("django.dispatch")
    if not _shows_errors(receivers):
        receivers.handlers += logger.handlers


def _silence_terminal(logger: logging.Logger) -> None:
    """Keep what Django logs about each task off the terminal, unless the project has configured this logger.

    The lines about jobs say the same. Handlers that do not write to the terminal, such as mail to admins, get it still.
    """
    if logger.handlers or logger.level:
        return
    # Without any handler, logging would write errors to stderr.
    logger.addHandler(logging.NullHandler(logging.ERROR))
    above = logger.parent
    while above is not None:
        for handler in above.handlers:
            if type(handler) is logging.StreamHandler:
                handler.addFilter(WithoutLogger(logger.name))
        above = above.parent if above.propagate else None


def _shows_errors(logger: logging.Logger) -> bool:
    """Return whether a stream handler writes the errors of `logger`."""
    found: logging.Logger | None = logger
    while found is not None:
        for handler in found.handlers:
            hidden = not settings.DEBUG and any(isinstance(one, RequireDebugTrue) for one in handler.filters)
            if isinstance(handler, logging.StreamHandler) and handler.level <= logging.ERROR and not hidden:
                return True
        found = found.parent if found.propagate else None
    return False


def _may_be_worker(pid: int) -> bool:
    """False only if /proc says that the process is another one, which has got the number of a worker since."""
    try:
        return b"runworker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


@contextmanager
def pid_file(name: str | None) -> Iterator[None]:
    """Keep this process's id in file `name` within the block. Raises CommandError if it names a running process."""
    if name is None:
        yield
        return
    path = Path(name)
    with suppress(OSError, ValueError):
        other = int(path.read_text())
        if other != os.getpid() and pid_exists(other) and _may_be_worker(other):
            raise CommandError(
                f"{path}: worker {other} is running; stop it first, or use another --pidfile", returncode=USAGE
            )
    try:
        # Not through a link: its target may be any file that this account may write.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(path, "w", opener=lambda name, _: os.open(name, flags, 0o644)) as file:
            file.write(f"{os.getpid()}\n")
    except OSError as error:
        raise CommandError(f"--pidfile {path}: {error.strerror}", returncode=USAGE) from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
