"""The lines that a job logs, kept in memory while it runs and stored with attempts that fail."""

from __future__ import annotations

import logging
import time
from collections import deque

from jobqueue.failures import storable

LINE_BYTES = 2_000
LOG_BYTES = 16_384

_formatter = logging.Formatter()


class JobLog:
    """The newest lines of one attempt."""

    def __init__(self, lines: int) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._count = 0

    def add(self, record: logging.LogRecord) -> None:
        stamp = time.strftime("%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname} {record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + _formatter.formatException(record.exc_info)
        self._lines.append(storable(line, LINE_BYTES))
        self._count += 1

    def text(self) -> str:
        """The newest lines, up to LOG_BYTES; the first line says how many are left out."""
        kept: deque[str] = deque()
        room = LOG_BYTES
        for line in reversed(self._lines):
            room -= len(line.encode()) + 1
            if room < 0:
                break
            kept.appendleft(line)
        left_out = self._count - len(kept)
        if left_out:
            kept.appendleft(f"... {left_out} earlier lines left out ...")
        return "\n".join(kept)
