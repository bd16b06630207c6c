"""The text of an exception as it is stored and logged, and its fingerprint.

A fingerprint is equal for failures of the same kind, whatever the job, host, process or day.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType

from jobqueue.exceptions import HardTimeout, JobExpired, JobLost, JobQueueError, ResultError
from jobqueue.failures.causes import class_path, driver_code

# A MySQL TEXT column holds 65,535 bytes; the rest is reserved for the note about what was cut.
ERROR_BYTES = 60_000
# What a log line shows of a traceback.
TRACE_BYTES = 16_000

#: the folder of this package
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
#: the parts of the package that call tasks
_CALLERS = tuple(PACKAGE + room + os.sep for room in ("worker", "testing"))


def is_permanent(error: BaseException | str) -> bool:
    """Return whether the job must not be retried: its effect has happened, and only its result cannot be stored."""
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


#: the length of a fingerprint: 64 bits as hexadecimal digits
FINGERPRINT_CHARS = 16
# What is read of a message, and what counts of it without its values. The rest is mostly values.
_READ_CHARS, _MESSAGE_CHARS = 2000, 500
_FRAMES_MAX = 2000
# Through the base class: a subclass may have a property of this name, which raises.
_TRACEBACK = BaseException.__dict__["__traceback__"]

_PATHS = sysconfig.get_paths()
_NOT_PROJECT = (PACKAGE, "<frozen", _PATHS["stdlib"], _PATHS["platstdlib"])
# Python 3.12 and later have no frames for comprehensions.
_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
#: the message of these names the worker and how its process died
_WITHOUT_MESSAGE = (JobLost, HardTimeout, JobExpired)

_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    "|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = "(?:(?:Mon|Tue(?:s)?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,?[ ]{1,2})?"
#: what differs between failures of one kind: quoted text, the values in the details of PostgreSQL, URLs, paths, e-mail
#: addresses, names of hosts, IPv6 addresses, dates, long tokens that mix letters and digits (UUIDs, hashes),
#: hexadecimal numbers, and all other numbers with their signs and exponents
_PATTERN = r"""
      (?<!\w)[bBrRuUfF]{0,2}(?:
          "(?:[^"\\]|\\.)*(?:"END) | '(?:[^'\\]|\\.)*(?:'(?!\w)END) | `[^`]*(?:`END)
        | \u201c[^\u201d]*(?:\u201dEND) | \u2018[^\u2019]*(?:\u2019END) | \u00ab[^\u00bb]*(?:\u00bbEND)
      )
    | (?<=\))=\([^\n]*\)
    | (?<=row[ ]contains[ ])\((?s:.*)
    | \b\w{2,20}://\S+
    | (?<=\burl:[ ])/\S*
    | (?<![\w</])/(?=[\w%.~])[^\s"'<>()]+
    | (?<![^\s@<>(])[^\s@<>(]{1,64}@[\w.-]+
    | (?<![\w.-])(?:[\w-]{1,63}+\.){1,8}(?:com|org|net|io|dev|cloud|local|internal|example)\b(?![.\w])
    | (?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,8}[0-9a-fA-F]{0,4}(?:%\w+)?(?![\w:])
    | \b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:[ ]?(?:Z\b|UTC\b|[+-]\d\d:?\d\d\b))?
    | \bDAY(?:\d{1,2}[ ]MONTH|MONTH\.?[ ]{1,2}\d{1,2})\b(?:,?[ ]\d{4}\b)?
    | \b0[xX][0-9a-fA-F]+
    | \b(?=[\w-]{0,32}\d)(?=[\w-]{0,32}[A-Za-z])[A-Za-z0-9_-]{16,}\b
    | \b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}\b
    | (?:(?<![\w)\]])[-+])?\d+(?:[.,:/_-]+\d+)*(?:[eE][-+]?\d+\b)?
    """.replace("DAY", _DAY).replace("MONTH", _MONTH)
_VALUES = re.compile(_PATTERN.replace("END", ""), re.VERBOSE)
#: of a long message: a quotation may end where the reading ends
_VALUES_OF_LONG = re.compile(_PATTERN.replace("END", r"|\Z"), re.VERBOSE | re.DOTALL)
_SPACE = re.compile(r"\s+")


def fingerprint(error: BaseException | str, *, task: str | None, queue: str) -> str:
    """The fingerprint of a failed attempt: of its task (or the queue of a handler), class, message and place.

    The message counts without quoted text, numbers and addresses, but with the number or SQLSTATE of a database, and
    the place is the innermost function of the project, without its line: neither another value, nor a deploy that moves
    a line, makes another fingerprint.
    """
    if not isinstance(error, BaseException):
        parts = ("", _plain(error), "")
    else:
        said = "" if issubclass(type(error), _WITHOUT_MESSAGE) else _plain(message(error))
        # The message of MySQL's drivers is a number and a quoted text, of which nothing is left.
        code = driver_code(error)
        parts = (class_path(type(error)), f"{code} {said}" if code else said, _place(error))
    text = "\x1f".join((task if task is not None else f"@{queue}", *parts))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=FINGERPRINT_CHARS // 2).hexdigest()


def _plain(text: str) -> str:
    """A message without what differs between failures of one kind."""
    values = _VALUES if len(text) <= _MESSAGE_CHARS else _VALUES_OF_LONG
    # Half an escape at the end would leave a quotation open.
    read = text[:_READ_CHARS].rstrip("\\")
    return _SPACE.sub(" ", values.sub("#", read)[:_MESSAGE_CHARS]).strip()


def _place(error: BaseException) -> str:
    """module:function of the innermost frame that is the project's; "" if there is none."""
    found: FrameType | None = None
    trace: TracebackType | None = _TRACEBACK.__get__(error)
    for _ in range(_FRAMES_MAX):
        if trace is None:
            break
        if _is_project(trace.tb_frame):
            found = trace.tb_frame
            if issubclass(type(error), RecursionError):
                # Where it ends depends on the depth at which it began.
                break
        trace = trace.tb_next
    return f"{found.f_globals.get('__name__', '')}:{found.f_code.co_qualname}" if found is not None else ""


def _is_project(frame: FrameType) -> bool:
    code = frame.f_code
    path = code.co_filename
    if code.co_name in _INLINED or "site-packages" in path or "dist-packages" in path:
        return False
    return not path.startswith(_NOT_PROJECT)
