"""The size of each stage: it follows the speed of the machine and the time that is left."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: the whole demo aims at this time; the starts of its programs, which no size makes shorter, may take it beyond
GOAL_SECONDS = 90.0
#: of what is expected: a stage whose own time differs more does not say more about the machine
_SURPRISE = 2.0


@dataclass(frozen=True)
class Cost:
    """Seconds on two quiet cores: `least` whatever the size, for starts and spans, and `full` more at full size."""

    least: float
    full: float


COSTS = {
    "files": Cost(2.5, 4.0),
    "orders": Cost(4.0, 5.0),
    "numbers": Cost(4.0, 15.0),
    "parcels": Cost(3.5, 2.5),
    "outage": Cost(3.0, 1.5),
    "month": Cost(4.0, 1.5),
}


def sized(full: int, least: int, share: float) -> int:
    """That share of `full`, but not less than `least`, with which the stage still proves what it says."""
    return min(full, max(least, round(full * share)))


class Plan:
    """Shares of the time for the stages that are still to come. `slowness` is 1.0 on two quiet cores."""

    def __init__(
        self,
        stages: Sequence[str],
        slowness: float,
        *,
        began: float,
        goal_seconds: float = GOAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slowness = max(1.0, slowness)
        self._ahead = [COSTS[stage] for stage in stages]
        self._until, self._clock = began + goal_seconds, clock
        self._share = 1.0
        self._begun_at = clock()

    def begin(self) -> float:
        """The share of its full size that the next stage gets: from 0.0, the least it can have, to 1.0."""
        self._begun_at = self._clock()
        self._share = self.share(self._until - self._begun_at)
        return self._share

    def share(self, seconds: float, done: float = 0.0) -> float:
        """What fits into `seconds`, with the stages to come. `done`: the part of the present stage that is over."""
        present, *later = self._ahead
        # Programs are started at the beginning of a stage.
        least = (0.0 if done else present.least) + sum(cost.least for cost in later)
        full = present.full * (1 - done) + sum(cost.full for cost in later)
        return min(1.0, max(0.0, (seconds / self.slowness - least) / full))

    def again(self, done: float) -> float:
        """The share for the rest of the present stage, of which the part `done` is over. It never grows."""
        self._learn(done)
        self._share = min(self._share, self.share(self._until - self._clock(), done))
        return self._share

    def end(self) -> None:
        """The present stage is over: its time says how slow the machine is now."""
        self._learn(1.0)
        del self._ahead[0]

    def _learn(self, done: float) -> None:
        cost = self._ahead[0]
        expected = cost.least + cost.full * self._share * done
        took = self._clock() - self._begun_at
        found = min(max(took / expected, self.slowness / _SURPRISE), self.slowness * _SURPRISE)
        self.slowness = max(1.0, (self.slowness + found) / 2)
