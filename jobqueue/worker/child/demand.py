"""How many jobs to ask a queue for, when threads and coroutines have room for different numbers."""

from __future__ import annotations

import time

LOOK_SECONDS = 1.0
#: what a child holds beyond the jobs of its free threads, of queues whose payloads are long: memory must have a bound
HELD_CHARS = 16 * 2**20
#: how quickly long payloads are forgotten, with each claim that brings shorter ones
FORGOTTEN = 0.02


class Demand:
    """Remembers what each queue brought last, for whether a job is a coroutine is known only after its claim.

    A queue that brings sync jobs is asked for what the threads can take. One that brought k coroutines is asked for up
    to 2k more, so all places are filled after a few claims, and a queue that turns to sync jobs brings few too many.
    Those few are given back at once; the next claim of that queue then no longer counts on coroutines. A queue whose
    last claim brought nothing but coroutines is not asked on the threads' account: with all places taken, its next
    jobs would only be claimed and given back, again and again. Once a second one job is tried all the same: the queue
    may have changed, and what runs now may run for hours.

    Where `batch` jobs share a call, a thread is asked for as many; fewer after a claim that brought jobs which run
    alone: more of those would be claimed and given back.

    A queue that brought long payloads is asked for no more than fit into HELD_CHARS together, if all were as long as
    the longest; or for as many as there are free threads.
    """

    def __init__(self) -> None:
        self._sync: dict[str, int] = {}
        self._coroutines: dict[str, int] = {}
        self._alone: dict[str, float] = {}  # the share of the last claim that was to run alone
        self._longest: dict[str, float] = {}  # payload of a claim, in characters
        self._looked = self._tried = 0.0

    def ask(self, queue: str, room: int, places: int, batch: int = 1, *, free: int = 0, held: int = 0) -> int:
        """How many jobs to claim from `queue` when threads have `room` for calls, and coroutines have `places`.

        `free` threads run nothing, and `held` jobs are in hand.
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
        """What a claim from `queue` brought; an empty one teaches nothing. `alone`: of the sync ones.

        `longest`: the characters of its longest payload.
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
        # It may have to be given back, so not of many queues at a time.
        now = time.monotonic()
        if now - self._tried < LOOK_SECONDS:
            return 0
        self._tried = now
        return 1

    def wants_coroutines(self, places: int) -> bool:
        """Whether a look at the queues is worth its statement while the threads can take nothing.

        It is when some queue brings coroutines; else once a second, to try one job.
        """
        now = time.monotonic()
        if places <= 0 or not (self._coroutines or now - self._looked >= LOOK_SECONDS):
            return False
        self._looked = now
        return True
