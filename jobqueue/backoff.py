"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from jobqueue.exceptions import InvalidValue


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
