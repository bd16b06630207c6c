"""How long to go on trying."""

from __future__ import annotations

import random
import time

_FIRST_SECONDS = 0.005
_LONGEST_SECONDS = 0.2


class Deadline:
    """From now on for `timeout_seconds`: None = for ever, 0 = one try."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._begun = time.monotonic()
        self._deadline = None if timeout_seconds is None else self._begun + timeout_seconds
        self._pause_seconds = _FIRST_SECONDS
        #: whether a try has been in vain
        self.tried = False

    def waited_seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    def left_seconds(self) -> float | None:
        """What is left, 0 at least; None = any time."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def pause_seconds(self) -> float | None:
        """How long to sleep before the next try: at random, up to 0.2 s, twice as long each time; None = give up."""
        self.tried = True
        left = self.left_seconds()
        if left == 0:
            return None
        pause = random.uniform(0.5, 1.0) * self._pause_seconds
        self._pause_seconds = min(_LONGEST_SECONDS, self._pause_seconds * 2)
        return pause if left is None else min(pause, left)
