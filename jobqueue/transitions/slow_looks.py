"""Which claims took long, so that they are not made again at once from the head of the queue.

While any transaction keeps an old snapshot open, the index entries of the jobs that were claimed since cannot be
purged, and a claim from the head walks over all of them. Floors spare that to full batches; this memory spares it to
claims that find the queue nearly empty, and to small ones.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from jobqueue import heads
from jobqueue.names import SECONDS_MAX
from jobqueue.transitions.request import Row

_QUEUES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Look:
    seen_to: float  # whatever was due before this (monotonic) has been taken
    good_until: float


class SlowLooks:
    """The memory of one claimer. What is due for longer than its ages say waits until heads.pause_seconds() are over.

    Such are jobs that were given back, retried by hand or committed late. Where claims are quick nothing is remembered.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[int, _Look]] = {}

    def ages(self, queue: str) -> dict[int, float]:
        """By level how far back a claim needs to look now; a level that is missing is looked at from its head."""
        now = time.monotonic()
        known = self._known.get(queue, {}).items()
        return {level: now - look.seen_to + heads.COMMIT_SECONDS for level, look in known if now < look.good_until}

    def looked(
        self,
        queue: str,
        levels: Iterable[int],
        rows: Sequence[Row],
        begun: float,
        *,
        full: bool,
        aged: Collection[int | None],
    ) -> None:
        """A claim since `begun` met `rows`, in order, and nothing else on `levels`; if `full`, there may be more.

        It did not look at `aged` from the head: these are not known for longer than before.
        """
        now = time.monotonic()
        known = {level: look for level, look in self._known.get(queue, {}).items() if now < look.good_until}
        pause = heads.pause_seconds(now - begun)
        last = rows[-1] if full else None
        for level in {*levels, *(row.priority for row in rows)}:
            lag = (last.now - last.due_at).total_seconds() if last and level == last.priority else 0.0
            if lag > SECONDS_MAX:
                # No database can subtract any number of years.
                known.pop(level, None)
            elif level not in aged and pause:
                known[level] = _Look(begun - lag, now + pause)
            elif level in known:
                known[level] = replace(known[level], seen_to=max(begun - lag, known[level].seen_to))
        if len(self._known) > _QUEUES_MAX:
            self._known.clear()
        self._known[queue] = known
