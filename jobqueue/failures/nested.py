"""Retries inside a job: how many calls one attempt has made by a library that retries.

Nothing is imported: what is known of a library is read from its exceptions, and from the variables of its functions in
their tracebacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from types import TracebackType
from typing import Any, NamedTuple

from jobqueue.failures.causes import chain, class_path

# Through the base class: a subclass may have a property of this name, which raises.
_TRACEBACK = BaseException.__dict__["__traceback__"]
_FRAMES_MAX = 500
TRIES_MAX = 100_000


class Nested(NamedTuple):
    """The calls of one attempt, and the libraries that repeated them; (1, ()) without any."""

    tries: int
    libraries: tuple[str, ...]


ONCE = Nested(1, ())


def nested_tries(error: BaseException) -> Nested:
    """How many calls the attempt made that ended with `error`, as far as libraries tell; layers multiply.

    Known are urllib3 and what is built on it (requests), tenacity (stamina), botocore (boto3) and backoff.
    """
    found: dict[str, int] = {}
    for one in chain(error, suppressed=True):
        try:
            for library, tries in [*_of_error(one), *_of_frames(_TRACEBACK.__get__(one))]:
                if isinstance(tries, int) and 1 < tries <= TRIES_MAX:
                    found[library] = max(tries, found.get(library, 1))
        except BaseException:  # the attributes of foreign objects can be properties that raise anything
            continue
    return Nested(min(prod(found.values()), TRIES_MAX), tuple(sorted(found))) if found else ONCE


def _of_error(error: BaseException) -> Iterator[tuple[str, object]]:
    kind = class_path(type(error)).partition(".")[0]
    if kind == "tenacity":
        yield kind, _path(error, "last_attempt", "attempt_number")
    response = _path(error, "response")
    if isinstance(response, dict):
        retried = (response.get("ResponseMetadata") or {}).get("RetryAttempts")
        if isinstance(retried, int):
            yield "botocore", retried + 1
    history = _path(response, "raw", "retries", "history")
    if isinstance(history, tuple):
        yield "urllib3", len(history) + 1


def _of_frames(trace: TracebackType | None) -> Iterator[tuple[str, object]]:
    for _ in range(_FRAMES_MAX):
        if trace is None:
            return
        frame = trace.tb_frame
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if library == "urllib3" and frame.f_code.co_name == "increment":
            history = frame.f_locals.get("history")
            yield library, len(history) if isinstance(history, tuple) else None
        elif library == "tenacity":
            yield library, _path(frame.f_locals.get("retry_state"), "attempt_number")
        elif library == "backoff":
            yield library, frame.f_locals.get("tries")
        trace = trace.tb_next


def wrapped_tries(function: object) -> tuple[str, int | None] | None:
    """The library that wraps `function` and repeats its calls, and how often at most, if it says; None: no library."""
    for _ in range(10):
        retrying = getattr(function, "retry", None)
        if type(retrying).__module__.partition(".")[0] == "tenacity":
            most = _path(retrying, "stop", "max_attempt_number")
            return "tenacity", most if isinstance(most, int) else None
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return None
    return None


def _path(found: Any, *names: str) -> Any:
    for name in names:
        found = getattr(found, name, None)
    return found
