"""The lines that a job logs, kept in memory while it runs, for the history of attempts that fail."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from jobqueue.compat import signals
from jobqueue.conf import load
from jobqueue.context.job_context import current_job
from jobqueue.exceptions import SoftTimeout
from jobqueue.failures import storable

LINE_BYTES = 2_000
LOG_BYTES = 16_384

_installed = False
_formatter = logging.Formatter()


class JobLog:
    """The newest lines of one attempt."""

    def __init__(self, lines: int) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._count = 0

    def add(self, record: logging.LogRecord) -> None:
        """Keep what one record says."""
        stamp = time.strftime("%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname} {record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + _formatter.formatException(record.exc_info)
        self._lines.append(storable(line, LINE_BYTES))
        self._count += 1

    def text(self) -> str:
        """All of it, the newest LOG_BYTES; what was left out is said first."""
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


def install() -> None:
    """From now on records that are made in a job of this process are kept with its context, whoever handles them."""
    global _installed
    if _installed:
        return
    _installed = True
    make = logging.getLogRecordFactory()

    def make_and_keep(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = make(*args, **kwargs)
        job = current_job()
        # Not the lines that Django writes around each task by itself.
        if job is not None and record.name != signals.logger.name:
            _keep(job, record)
        return record

    logging.setLogRecordFactory(make_and_keep)


def _keep(job: Any, record: logging.LogRecord) -> None:
    try:
        if job.log is None:
            lines = load().log_lines
            if not lines:
                return
            job.log = JobLog(lines)
        job.log.add(record)
    except SoftTimeout:
        raise
    except Exception:
        # Arguments that do not fit their text: whoever handles the record tells.
        return
