"""Where a command's log lines go."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.utils.log import RequireDebugTrue

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
    if not logger.handlers:
        handler = Lines(sys.stderr)
        as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
        handler.setFormatter(JsonFormatter() if as_json else TextFormatter(style if sys.stderr.isatty() else None))
        logger.addHandler(handler)
        logger.propagate = False
    # What receivers of signals raise. Django's default LOGGING shows it on a console with DEBUG only.
    receivers = logging.getLogger("django.dispatch")
    if not _is_shown(receivers):
        receivers.handlers += logger.handlers


def _is_shown(logger: logging.Logger) -> bool:
    """Whether a stream takes the errors of `logger`."""
    found: logging.Logger | None = logger
    while found is not None:
        for handler in found.handlers:
            hidden = not settings.DEBUG and any(isinstance(one, RequireDebugTrue) for one in handler.filters)
            if isinstance(handler, logging.StreamHandler) and handler.level <= logging.ERROR and not hidden:
                return True
        found = found.parent if found.propagate else None
    return False
