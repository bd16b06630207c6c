"""A process that writes the log lines of the supervisor and the monitor.

A write to a pipe that nobody reads, and a log handler that hangs, block the writer; neither of the two may block. It is
a process and not a thread because the supervisor has no threads, so that it can fork at any time.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from queue import Full, Queue

from jobqueue.worker.shared.processes import Forker, end_child

logger = logging.getLogger("jobqueue.worker")

RECORD_BYTES = 60_000  # longer texts are truncated
WAITING_MAX = 1000
LAST_SECONDS = 2.0  # how long it may take, at the end, to write what waits
AGAIN_SECONDS = 1.0  # between two starts
_USUAL = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_KEPT = ["name", "levelno", "levelname", "created", "msecs", "pathname", "filename", "module", "lineno", "funcName"]
_KEPT += ["process", "processName", "thread", "threadName", "stack_info"]


class LogWriter:
    """Replaces all log handlers of the supervisor, and of the processes it forks, until leave().

    While the process does not run, and on systems without the sockets it needs, each process writes its own lines.
    """

    def __init__(self) -> None:
        self.pid = 0
        self._handlers: dict[logging.Logger, list[logging.Handler]] = {}
        self._not_before = 0.0
        self._ends: tuple[socket.socket, socket.socket] | None = None
        with suppress(OSError, AttributeError):
            self._ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, forker: Forker) -> None:
        """Start the process if it does not run and the system has room for it."""
        now = time.monotonic()
        if self.pid or self._ends is None or now < self._not_before or not forker.ready:
            return
        self._not_before = now + AGAIN_SECONDS
        self.pid = forker.fork(self._write)
        if self.pid:
            self._take_over(self._ends[1])

    def ended(self) -> None:
        self.pid = 0
        self._give_back()

    def leave(self) -> None:
        """Restore the log handlers of this process for good."""
        self._give_back()
        if self._ends is not None:
            for end in self._ends:
                end.close()
            self._ends = None

    def end(self) -> None:
        """Let the process write what waits, for about 2 s at most. Call this after the end of the monitor."""
        self.leave()
        if self.pid:
            end_child(self.pid, LAST_SECONDS + 0.5)

    def _give_back(self) -> None:
        for one, handlers in self._handlers.items():
            one.handlers = handlers
        self._handlers = {}

    def _take_over(self, sender: socket.socket) -> None:
        sender.setblocking(False)
        ours = _Sender(sender)
        for one in [logging.root, *logging.root.manager.loggerDict.values()]:
            # The root logger sends the records that propagate to it.
            if isinstance(one, logging.Logger) and (one.handlers or one is logging.root):
                self._handlers[one] = one.handlers
                one.handlers = [ours] if one is logging.root or not one.propagate else []

    def _write(self) -> int:
        """Run in the new process, until the last sender has ended."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        assert self._ends is not None
        receiver = self._ends[0].dup()
        # With a sender of its own it would never see the end of the input.
        self.leave()
        if not _Writer().run(receiver):
            # Not by return: that flushes the rest of a line to a stream that nobody reads.
            os._exit(0)
        return 0


class _Sender(logging.Handler):
    """Sends records to the process, and drops those for which there is no room."""

    def __init__(self, sender: socket.socket) -> None:
        super().__init__()
        self._sender, self._dropped = sender, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send `record`; never waits or raises."""
        try:
            self._sender.send(_packed(record, self._dropped))
            self._dropped = 0
        except (Exception, SystemExit):  # the attributes of a job's exception may raise that
            self._dropped += 1


class _Writer:
    """Reads records in one thread, and calls the real handlers, which may hang, in another thread."""

    def __init__(self) -> None:
        self._waiting: Queue[bytes | None] = Queue(WAITING_MAX)
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)

    def run(self, receiver: socket.socket) -> bool:
        """Write until the last sender has closed its end; returns whether all records were written."""
        take = self._put
        try:
            self._thread.start()
        except RuntimeError:
            take = self._emit
        while data := receiver.recv(4 * RECORD_BYTES):
            take(data)
        if self._thread.is_alive():
            with suppress(Full):
                self._waiting.put(None, timeout=LAST_SECONDS)
            self._thread.join(LAST_SECONDS)
        return not self._thread.is_alive()

    def _put(self, data: bytes) -> None:
        try:
            self._waiting.put_nowait(data)
        except Full:
            self._dropped += 1

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            self._emit(data)

    def _emit(self, data: bytes) -> None:
        with suppress(Exception):  # a log handler may raise
            fields = json.loads(data)
            dropped, self._dropped = fields.pop("dropped") + self._dropped, 0
            record = logging.makeLogRecord(fields)
            if dropped:
                logger.warning("%d log lines were dropped because they could not be written in time", dropped)
            logging.getLogger(record.name).handle(record)


def _packed(record: logging.LogRecord, dropped: int) -> bytes:
    fields = {key: getattr(record, key, None) for key in _KEPT}
    fields |= {key: value for key, value in record.__dict__.items() if key not in _USUAL}
    fields["msg"] = record.getMessage()[: RECORD_BYTES // 12]
    fields["dropped"] = dropped
    if record.exc_info:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)[-RECORD_BYTES // 4 :]
    return json.dumps(fields, default=str).encode()
