"""How many jobs to claim from a queue, when threads and coroutines have room for different numbers."""

from __future__ import annotations

import time

LOOK_SECONDS = 1.0
#: the most payload that a child holds beyond the jobs of its free threads, to bound its memory
HELD_CHARS = 16 * 2**20
#: how much of the longest payload is forgotten with each claim that brings shorter ones
FORGOTTEN = 0.02


class Demand:
    """Remembers what the last claim from each queue brought: only a claim shows whether jobs are coroutines.

    A queue that brings sync jobs is asked for what the threads can take. A queue that brought k coroutines is asked for
    up to 2k more: all places are filled after a few claims, and a queue that turns to sync jobs brings few too many,
    which are given back at once. A queue whose last claim brought only coroutines is not asked for sync jobs: while all
    places are taken, its next jobs would be claimed and given back again and again. Once a second, one job is claimed
    all the same, because the queue may have changed while jobs run for hours.

    Where `batch` jobs share a call, a thread asks for as many; for fewer after a claim that brought jobs which run
    alone, because the others would be given back.

    From a queue that brought long payloads, no more jobs are asked for than fit into HELD_CHARS if all were as long as
    the longest, but always as many as there are free threads.
    """

    def __init__(self) -> None:
        self._sync: dict[str, int] = {}
        self._coroutines: dict[str, int] = {}
        self._alone: dict[str, float] = {}  # the share of the last claim that had to run alone
        self._longest: dict[str, float] = {}  # payload of a claim, in characters
        self._looked = self._tried = 0.0

    def ask(self, queue: str, room: int, places: int, batch: int = 1, *, free: int = 0, held: int = 0) -> int:
        """How many jobs to claim from `queue` when threads have `room` for calls, and coroutines have `places`.

        `free` threads run nothing, and the child holds `held` jobs.
        """
        room, places = max(0, room), max(0, places)
        if batch > 1:
            alone = self._alone.get(queue, 0.0)
            room = round(room / (alone + (1 - alone) / batch))
        if longest := self._longest.get(queue):
            room = min(room, max(free, int(HELD_CHARS / longest) - held))
        coroutines = self._coroutines.get(queue, 0)
        asked = min(places, 2 * coroutines) + (0 if coroutines and not self._sync[queue] else room)
        return asked or (self._try() if room or places else 0)

    def brought(self, queue: str, sync: int, coroutines: int, alone: int = 0, longest: int = 0) -> None:
        """Record what a claim from `queue` brought; an empty claim changes nothing.

        `alone` counts the sync jobs that run alone, `longest` the characters of the longest payload.
        """
        if not sync + coroutines:
            return
        self._longest[queue] = max(longest, (1 - FORGOTTEN) * self._longest.get(queue, 0.0))
        self._alone[queue] = alone / sync if sync else 0.0
        self._sync[queue] = sync
        if coroutines:
            self._coroutines[queue] = coroutines
        else:
            self._coroutines.pop(queue, None)

    def _try(self) -> int:
        # One job of one queue a second: it may have to be given back.
        now = time.monotonic()
        if now - self._tried < LOOK_SECONDS:
            return 0
        self._tried = now
        return 1

    def wants_coroutines(self, places: int) -> bool:
        """Whether to read the queues while the threads have no room: if a queue brings coroutines, or once a second."""
        now = time.monotonic()
        if places <= 0 or not (self._coroutines or now - self._looked >= LOOK_SECONDS):
            return False
        self._looked = now
        return True
