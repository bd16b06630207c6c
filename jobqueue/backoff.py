"""How long to wait before the next attempt: exponential back-off, tables, functions, and what a service asks for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeAlias

from jobqueue.base.durations import to_seconds
from jobqueue.base.validation import signature_of
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures.causes import classes


class Uniform(Protocol):
    """The one method of random.Random that is used here."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with jitter, in seconds.

    After the k-th failure: min(cap, base * factor ** (k - 1)) times uniform(1 - jitter, 1 + jitter), never above cap.
    Raises InvalidValue for values that could give a negative or endless delay.
    """

    base_seconds: float = 5.0
    factor: float = 2.0
    cap_seconds: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidType(f"{name} of a Backoff must be a number, got {type(value).__name__}.")
        if not (self.base_seconds >= 0 and self.factor >= 1 and 0 <= self.cap_seconds <= 31_536_000):
            raise InvalidValue(
                f"{self}: base_seconds must be >= 0, factor >= 1, cap_seconds between 0 and one year. "
                "Nothing was changed; correct the back-off."
            )
        if not 0 <= self.jitter < 1:
            raise InvalidValue(f"{self}: jitter must be at least 0 and below 1. Correct the back-off.")

    def delay_seconds(self, failures: int, rng: Uniform = random) -> float:
        """Seconds to wait after `failures` failures (1 = the first)."""
        # The exponent is bounded so that factor ** k cannot overflow after thousands of failures.
        step = min(max(failures, 1) - 1, 64)
        raw = min(self.cap_seconds, self.base_seconds * self.factor**step)
        return min(self.cap_seconds, raw * rng.uniform(1 - self.jitter, 1 + self.jitter))


#: a Backoff; seconds, or a table of seconds whose last value repeats (both with jitter of a fifth); or a function of
#: (failures, error), or of (exception, task_result), that returns seconds
Wait: TypeAlias = Backoff | float | timedelta | Sequence[float | timedelta | str] | Callable[..., float]

_JITTER = 0.2
#: parameters of the form proposed for Django Tasks
_DJANGO = {"exception", "task_result"}


def checked_wait(wait: object) -> Backoff | float | tuple[float, ...] | Callable[..., float]:
    """`wait` as next_wait() takes it. Raises InvalidType or InvalidValue for what it cannot use."""
    if isinstance(wait, Backoff) or (callable(wait) and not isinstance(wait, type)):
        return wait
    if isinstance(wait, (tuple, list)):
        if not wait:
            raise InvalidValue("backoff is an empty table. Nothing was written; give it at least one wait in seconds.")
        return tuple(to_seconds(step, "a wait of backoff", zero=True) for step in wait)
    if isinstance(wait, (int, float, timedelta)) and not isinstance(wait, bool):
        return to_seconds(wait, "backoff", zero=True)
    raise InvalidType(
        "backoff must be a jobqueue.backoff.Backoff, seconds, a table of seconds, or a function of (failures, error) "
        f"or (exception, task_result), got {wait!r:.80}."
    )


def wait_seconds(
    wait: Wait,
    failures: int,
    error: BaseException,
    task_result: Callable[[], object] = lambda: None,
    rng: Uniform = random,
) -> float:
    """Seconds to wait after `failures` failures. Raises what a function raises; InvalidValue for its result.

    `task_result` is called for a function that has a parameter of this name.
    """
    found = checked_wait(wait)
    if isinstance(found, Backoff):
        return found.delay_seconds(failures, rng)
    if isinstance(found, tuple):
        found = found[min(max(failures, 1), len(found)) - 1]
    if isinstance(found, float):
        return found * rng.uniform(1 - _JITTER, 1 + _JITTER)
    if takes_task_result(found):
        answer: object = found(exception=error, task_result=task_result())
    else:
        answer = found(failures, error)
    return to_seconds(answer, "what backoff() returned", zero=True)


def least_wait(wait: Wait) -> float:
    """The shortest that the first wait can be, in seconds; 0 for a function, which may return anything."""
    found = checked_wait(wait)
    if isinstance(found, Backoff):
        return min(found.cap_seconds, found.base_seconds) * (1 - found.jitter)
    if isinstance(found, tuple):
        found = found[0]
    return found * (1 - _JITTER) if isinstance(found, float) else 0.0


def takes_task_result(function: Callable[..., object]) -> bool:
    """Return whether a back-off function has the form proposed for Django Tasks: its parameters have these names."""
    signature = signature_of(function, follow_wrapped=True)
    return signature is not None and set(signature.parameters) >= _DJANGO


# Through the base class: a subclass may have a property of this name, which raises.
_CAUSE = BaseException.__dict__["__cause__"]
#: libraries whose HTTP errors are asked for Retry-After
_HTTP = {"requests", "httpx", "urllib", "aiohttp"}
#: a service may not put a job off for longer
RETRY_AFTER_MAX = 86400.0
_CHAIN = 5


def retry_after(error: BaseException) -> float | None:
    """The seconds that Retry-After asks for in an HTTP error of requests, httpx, urllib or aiohttp, or None.

    The error itself, or one that it was raised from. Between 0 and RETRY_AFTER_MAX.
    """
    found: BaseException | None = error
    for _ in range(_CHAIN):
        if found is None:
            return None
        if any(path.partition(".")[0] in _HTTP for _, path in classes(found)):
            try:
                headers: Any = getattr(getattr(found, "response", None), "headers", None)
                headers = headers if headers is not None else getattr(found, "headers", None)
                seconds = None if headers is None else _asked(headers.get("Retry-After"), headers.get("Date"))
            except BaseException:
                seconds = None  # an object of another library, which may raise anything
            if seconds is not None:
                return min(max(seconds, 0.0), RETRY_AFTER_MAX)
        found = _CAUSE.__get__(found)
    return None


def _asked(value: object, date: object) -> float | None:
    if not isinstance(value, str):
        return None
    if value.strip().isdecimal():
        return float(value[:18])
    until = _instant(value)
    if until is None:
        return None
    # By the clock of the service, if it tells the time.
    return (until - (_instant(date) or datetime.now(UTC))).total_seconds()


def _instant(value: object) -> datetime | None:
    try:
        found = parsedate_to_datetime(value) if isinstance(value, str) else None
    except (TypeError, ValueError):
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found
