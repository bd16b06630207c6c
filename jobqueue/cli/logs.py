"""Where a command's log lines go."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

from jobqueue.log_format import JsonFormatter, TextFormatter, connect_jobs


class Lines(logging.StreamHandler[Any]):
    """Lines to a stream; one that cannot be written is left out.

    Nobody may be reading, a job may have closed the stream, or a signal may come while a line is being written: what
    reports that, on stderr, would then raise into whoever wanted to say something.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        """Say so if that is possible."""
        with suppress(Exception):
            super().handleError(record)


def set_up(verbosity: int, log_format: str, style: Any) -> None:
    """Lines of the logger tree "jobqueue" to stderr, unless the project has set up logging for it.

    Verbosity 0: warnings and worse. 1: one line per job too. 2 and 3: debug.
    """
    logger = logging.getLogger("jobqueue")
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    logger.setLevel(level)
    if level <= logging.INFO:
        connect_jobs()
    if logger.handlers:
        return
    handler = Lines(sys.stderr)
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(style if sys.stderr.isatty() else None))
    logger.addHandler(handler)
    logger.propagate = False
