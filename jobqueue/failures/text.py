"""The text of an exception as it is stored and logged."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from jobqueue.exceptions import JobQueueError, ResultError

# A MySQL TEXT column holds 65,535 bytes; the rest is reserved for the note about what was cut.
ERROR_BYTES = 60_000
# What a log line shows of a traceback.
TRACE_BYTES = 16_000

#: the folder of this package
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
#: the parts of the package that call tasks
_CALLERS = tuple(PACKAGE + room + os.sep for room in ("worker", "testing"))


def is_permanent(error: BaseException | str) -> bool:
    """Whether the job must not be retried: its effect has happened, and only its result cannot be stored."""
    return issubclass(type(error), ResultError)


def summary(error: BaseException | str) -> str:
    """One line for lists: class and message, or the first line of the text. Names of builtins have no module."""
    if not isinstance(error, BaseException):
        return storable(error.strip().splitlines()[0] if error.strip() else "failed without a message", 500)
    name = dotted_path(type(error)).removeprefix("builtins.")
    return storable(f"{name}: {message(error)}".replace("\n", " "), 500)


def describe(error: BaseException | str) -> str:
    """The text for last_error: the traceback of an exception (without local variables), or the given text."""
    if not isinstance(error, BaseException):
        return storable(error or "failed without a message")
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # the exception's own __str__, __repr__ or __notes__ may raise anything
        text = f"{dotted_path(type(error))}: {message(error)} (its traceback could not be printed)"
    return storable(text)


def project_trace(error: BaseException) -> str:
    """The traceback of a job's error without the frames of this package, for log lines.

    All frames are kept if the last one is in this package and the error is none of its own: that may be a bug of it.
    """
    try:
        found = traceback.TracebackException.from_exception(error)
        own = bool(found.stack) and found.stack[-1].filename.startswith(PACKAGE)
        if not own or isinstance(error, JobQueueError):
            _leave_out_own_frames(found)
        text = "".join(found.format() if found.stack else _without_frames(found))
    except BaseException:  # as in describe()
        text = f"{dotted_path(type(error))}: {message(error)} (its traceback could not be printed)"
    return storable(text.rstrip("\n"), TRACE_BYTES)


def _leave_out_own_frames(found: traceback.TracebackException) -> None:
    # Chains have no circles: from_exception() leaves out what it has seen.
    for other in (found.__cause__, found.__context__, *(found.exceptions or ())):
        if other is not None:
            _leave_out_own_frames(other)
    frames = list(found.stack)
    begin = max((i + 1 for i, frame in enumerate(frames) if frame.filename.startswith(_CALLERS)), default=0)
    kept = [frame for frame in frames[begin:] if not frame.filename.startswith(PACKAGE)]
    found.stack = traceback.StackSummary.from_list(kept)


def _without_frames(found: traceback.TracebackException) -> list[str]:
    chained = found.__cause__ is not None or found.__context__ is not None or found.exceptions
    return list(found.format() if chained else found.format_exception_only())


def dotted_path(named: type | Callable[..., object]) -> str:
    """module.qualname of a class or function: text for people, never resolved back to code."""
    try:
        return f"{named.__module__}.{named.__qualname__}"
    except BaseException:  # a metaclass may raise anything
        return "(its name cannot be read)"


def storable(text: str, limit_bytes: int = ERROR_BYTES) -> str:
    """`text` as every database can store it: without NUL and lone surrogates, cut in the middle to limit_bytes."""
    raw = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(raw) <= limit_bytes:
        return raw.decode()
    note = f"\n... {len(raw) - limit_bytes} bytes left out ...\n".encode() if limit_bytes > 1000 else b"..."
    # Keep both ends: the beginning of a traceback names the job, the end names the error.
    tail = (limit_bytes - len(note)) // 2
    head = limit_bytes - len(note) - tail
    return (raw[:head] + note + raw[-tail:]).decode("utf-8", "ignore")


def message(error: BaseException) -> str:
    """str(error), whatever its __str__ does."""
    try:
        # A plain str: __str__ may return a subclass whose methods raise.
        return str.__str__(str(error))
    except BaseException:
        return "(its message could not be printed)"
