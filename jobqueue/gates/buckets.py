"""Token buckets by the database's clock: the generic cell rate algorithm (ITU-T I.371), one instant for each bucket.

A bucket holds a second's worth of tokens, at least one. So in any t seconds at most bucket + rate x t jobs start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobqueue.db.clock import UtcNow
from jobqueue.gates.locking import lock_gates, time_of, update_unlocked
from jobqueue.models import Gate

#: a token is there if less than this is missing: instants have microseconds, and a token's time seldom does
_ROUNDING = 1e-6
#: more than a claim can use
TOKENS_MAX = 1_000_000
#: less than this comes from rounding
_SET_BACK = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a bucket gave: how many tokens, and when it has the next one. `opens_at` None: never, the rate is 0."""

    tokens: int
    opens_at: datetime | None


def draw(used_until: datetime | None, now: datetime, per_second: float, wanted: int) -> tuple[datetime, Drawn]:
    """Draw up to `wanted` tokens at `now`; the new used_until, and what was drawn.

    A used_until further ahead than an empty bucket's, as after a clock that was set back, counts as an empty bucket's.
    """
    if per_second <= 0:
        return used_until or now, Drawn(0, None)
    size, seconds = max(1, math.floor(per_second)), 1 / per_second
    ahead = (used_until - now).total_seconds() if used_until is not None else 0.0
    ahead = min(max(ahead, 0.0), size * seconds)
    tokens = max(0, min(wanted, math.floor(size - ahead / seconds + _ROUNDING)))
    ahead += tokens * seconds
    # Both rounded up: many draws must not add up to more than the rate, and at opens_at the token must be there.
    ahead = _up(ahead * 1e6) / 1e6
    # The next token is there when all but one of the bucket are used.
    opens_at = now + timedelta(microseconds=_up(max(0.0, ahead - (size - 1) * seconds) * 1e6))
    return now + timedelta(microseconds=_up(ahead * 1e6)), Drawn(tokens, opens_at)


def _up(microseconds: float) -> int:
    return math.ceil(microseconds - _ROUNDING)


def mend(gate: Any, per_second: float, using: str) -> None:
    """Empty the bucket of a gate that was read with the database's time as `now`, if the clock was set back since.

    Those who draw nothing write nothing, so its tokens would come back only after the old time.
    """
    used_until, _ = draw(gate.used_until, gate.now, per_second, 0)
    if gate.used_until is not None and gate.used_until - used_until > _SET_BACK:
        rows = Gate.objects.using(using).filter(pk=gate.pk, used_until=gate.used_until)
        update_unlocked(rows, using, used_until=used_until, updated_at=UtcNow())
        gate.used_until = used_until


class Bucket:
    """The bucket of a gate that the open transaction has locked; `left`: its tokens."""

    def __init__(self, row: Any, per_second: float) -> None:
        self._row, self._per_second = row, per_second
        self.left = draw(row.used_until, row.now, per_second, TOKENS_MAX)[1].tokens

    @property
    def seconds_to_next(self) -> float:
        """How long it takes until it has a token, if it has none."""
        opens_at = draw(self._row.used_until, self._row.now, self._per_second, 0)[1].opens_at
        return 0.0 if opens_at is None else (opens_at - self._row.now).total_seconds()

    def write(self, tokens: int, using: str, *, waits: bool) -> None:
        """Draw so many. `waits`: jobs wait for the next one."""
        used_until, drawn = draw(self._row.used_until, time_of(self._row, using), self._per_second, tokens)
        opens_at = drawn.opens_at if waits or self._row.opens_at is not None else None
        Gate.objects.using(using).filter(pk=self._row.pk).update(
            used_until=used_until, per_second=self._per_second, opens_at=opens_at, updated_at=UtcNow()
        )


def lock_buckets(wanted: Mapping[int, tuple[float, str]], using: str) -> dict[int, Bucket]:
    """Lock the bucket of each subject until the end of the open transaction; only once, as lock_slots().

    `wanted`: by subject the rate per second, and the wait_reason of jobs that wait for it. Without those that others
    keep locked.
    """
    if not wanted:
        return {}
    gates = lock_gates({subject: reason for subject, (_, reason) in wanted.items()}, using)
    return {subject: Bucket(gate, wanted[subject][0]) for subject, gate in gates.items()}
