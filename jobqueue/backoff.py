"""Exponential back-off with jitter: how long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from jobqueue.conf import load
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.validation import check_seconds


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


def default_backoff() -> Backoff:
    """The back-off that JOBQUEUE configures."""
    settings = load()
    return Backoff(settings.backoff_base_seconds, settings.backoff_factor, settings.backoff_cap_seconds)


#: a Backoff, a number of seconds (with jitter of a fifth), or a function of (failures, error) that returns seconds
Wait: TypeAlias = Backoff | float | Callable[[int, BaseException], float]

_JITTER = 0.2


def check_wait(wait: object) -> None:
    """Raise InvalidType or InvalidValue for what wait_seconds() cannot use."""
    if isinstance(wait, (int, float)) and not isinstance(wait, bool):
        check_seconds(wait, "backoff", zero=True)
    elif not isinstance(wait, Backoff) and (isinstance(wait, type) or not callable(wait)):
        raise InvalidType(
            "backoff must be a jobqueue.backoff.Backoff, a number of seconds or a function of (failures, error), "
            f"got {wait!r:.80}."
        )


def wait_seconds(wait: Wait, failures: int, error: BaseException, rng: Uniform = random) -> float:
    """Seconds to wait after `failures` failures. Raises what a function raises; InvalidValue for its result."""
    if isinstance(wait, Backoff):
        return wait.delay_seconds(failures, rng)
    if isinstance(wait, (int, float)):
        return wait * rng.uniform(1 - _JITTER, 1 + _JITTER)
    return check_seconds(wait(failures, error), "what backoff() returned", zero=True)
