"""A process that writes the log lines of the supervisor and the monitor.

Writing to a pipe that nobody reads, or to a log handler that hangs, blocks the writer; neither of the two may block.
It is a process, not a thread: the supervisor has no threads, so that it can fork at any time.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from typing import Any

from jobqueue.worker.shared.processes import Forker

logger = logging.getLogger("jobqueue.worker")

RECORD_BYTES = 60_000  # the rest of a longer text is left out
WAITING_MAX = 1000
LAST_SECONDS = 2.0  # at the end, for what is not written yet
AGAIN_SECONDS = 1.0  # one that died is replaced no more often than this
_USUAL = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_KEPT = ["name", "levelno", "levelname", "created", "msecs", "pathname", "filename", "module", "lineno", "funcName"]
_KEPT += ["process", "processName", "thread", "threadName", "stack_info"]


class LogWriter:
    """Takes the places of all log handlers in the supervisor, and in what it forks, until leave()."""

    def __init__(self) -> None:
        self.pid = 0
        self._handlers: dict[logging.Logger, list[logging.Handler]] = {}
        self._not_before = 0.0
        self._ends: tuple[socket.socket, socket.socket] | None = None
        # Where a system has no such sockets, lines are written by whoever has something to say.
        with suppress(OSError, AttributeError):
            self._ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, forker: Forker) -> None:
        """See that it runs. Without room for a process lines are written by whoever has something to say."""
        now = time.monotonic()
        if self.pid or self._ends is None or now < self._not_before or not forker.ready:
            return
        self._not_before = now + AGAIN_SECONDS
        self.pid = forker.fork(self._write)
        if self.pid:
            self._take_over(self._ends[1])

    def ended(self) -> None:
        """Its process is gone: until there is another one, who has something to say writes it."""
        self.pid = 0
        self._give_back()

    def leave(self) -> None:
        """From now on this process writes its lines itself."""
        self._give_back()
        if self._ends is not None:
            for end in self._ends:
                end.close()
            self._ends = None

    def end(self) -> None:
        """Let it write what it has, for 2 s at most; called when the monitor is gone."""
        self.leave()
        until = time.monotonic() + LAST_SECONDS + 0.5
        while self.pid and time.monotonic() < until:
            with suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
                    continue
            self.pid = 0
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _give_back(self) -> None:
        for one, handlers in self._handlers.items():
            one.handlers = handlers
        self._handlers = {}

    def _take_over(self, sender: socket.socket) -> None:
        sender.setblocking(False)
        ours = _Sender(sender)
        loggers = [logging.root, *(one for one in logging.root.manager.loggerDict.values())]
        for one in loggers:
            # What goes on to the root logger is sent there.
            if isinstance(one, logging.Logger) and (one.handlers or one is logging.root):
                self._handlers[one] = one.handlers
                one.handlers = [ours] if one is logging.root or not one.propagate else []

    def _write(self) -> int:
        """The life of the process."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        assert self._ends is not None
        receiver = self._ends[0].dup()
        # Its end comes when the last writer is gone.
        self.leave()
        if not _Writer().run(receiver):
            # Not by return: what is left of the line would be written to where nobody reads.
            os._exit(0)
        return 0


class _Sender(logging.Handler):
    """Gives records to the process, and drops what there is no room for."""

    def __init__(self, sender: socket.socket) -> None:
        super().__init__()
        self._sender, self._dropped = sender, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Never waits, never raises."""
        try:
            self._sender.send(_packed(record, self._dropped))
            self._dropped = 0
        except BlockingIOError:
            self._dropped += 1
        except Exception:
            self._dropped += 1


class _Writer:
    """Reads records in one thread, and hands them to the real handlers in another one, which may hang."""

    def __init__(self) -> None:
        self._waiting: Queue[bytes | None] = Queue(WAITING_MAX)
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)

    def run(self, receiver: socket.socket) -> bool:
        """Until nobody is left who could send; whether all was written."""
        take = self._start()
        while data := receiver.recv(4 * RECORD_BYTES):
            take(data)
        if self._thread.is_alive():
            with suppress(Full):
                self._waiting.put(None, timeout=LAST_SECONDS)
            self._thread.join(LAST_SECONDS)
        return not self._thread.is_alive()

    def _start(self) -> Callable[[bytes], None]:
        try:
            self._thread.start()
        except RuntimeError:
            return self._emit
        return self._put

    def _put(self, data: bytes) -> None:
        try:
            self._waiting.put_nowait(data)
        except Full:
            self._dropped += 1

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            self._emit(data)

    def _emit(self, data: bytes) -> None:
        with suppress(Exception):  # of a log handler
            fields = json.loads(data)
            dropped, self._dropped = fields.pop("dropped") + self._dropped, 0
            record = logging.makeLogRecord(fields)
            if dropped:
                logger.warning("%d log lines were dropped while nobody wrote them", dropped)
            logging.getLogger(record.name).handle(record)


def _packed(record: logging.LogRecord, dropped: int) -> bytes:
    fields: dict[str, Any] = {key: getattr(record, key, None) for key in _KEPT}
    fields |= {key: value for key, value in record.__dict__.items() if key not in _USUAL}
    fields["msg"] = record.getMessage()[: RECORD_BYTES // 12]
    fields["dropped"] = dropped
    if record.exc_info:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)[-RECORD_BYTES // 4 :]
    return json.dumps(fields, default=str).encode()
