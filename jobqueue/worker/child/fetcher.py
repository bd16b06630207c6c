"""How jobs come into a child: how many to ask for, which queues to ask, and what a lost answer leaves behind."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from django.db import Error

from jobqueue import transitions
from jobqueue.conf import load
from jobqueue.db.fields import longest_payload
from jobqueue.db.retry import retries, retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.gates.timing import any_limited
from jobqueue.log_format import count_of, one_line
from jobqueue.transitions import Lease
from jobqueue.transitions.claiming.candidates import Head
from jobqueue.transitions.claiming.claimer import Claimer
from jobqueue.worker.child.child import Child
from jobqueue.worker.child.settler import Settler
from jobqueue.worker.child.sifting import UnknownTasks
from jobqueue.worker.run.batch import batch_of
from jobqueue.worker.run.pool import Accepted

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

LOOKS_SECONDS = 1.0  # how often the log says, with -v 3, that looks found nothing
AHEAD_SECONDS = 0.5  # jobs are claimed ahead of free threads for at most this much expected work
TRY_SECONDS = 1.0  # between two jobs that are claimed only to see whether a queue has changed
#: the most payload that a child holds beyond the jobs of its free threads, to bound its memory
HELD_CHARS = 16 * 2**20
#: how much of the longest payload is forgotten with each claim that brings shorter ones
FORGOTTEN = 0.02
#: between two claims of jobs that this process has opened: each takes few jobs, and costs as much as one of many
OPENED_SECONDS = 0.03


class _Brought(NamedTuple):
    """What the last claim from a queue brought."""

    sync: int
    coroutines: int
    alone: float  # the share of the sync jobs that had to run alone
    longest: float  # payload of the last claims, in characters


_NOTHING = _Brought(0, 0, 0.0, 0.0)


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
        self._last: dict[str, _Brought] = {}
        self._looked = self._tried = 0.0

    def ask(self, queue: str, room: int, places: int, batch: int = 1, *, free: int = 0, held: int = 0) -> int:
        """How many jobs to claim from `queue` when threads have `room` for calls, and coroutines have `places`.

        `free` threads run nothing, and the child holds `held` jobs.
        """
        room, places, last = max(0, room), max(0, places), self._last.get(queue, _NOTHING)
        if batch > 1:
            room = round(room / (last.alone + (1 - last.alone) / batch))
        if last.longest:
            room = min(room, max(free, int(HELD_CHARS / last.longest) - held))
        asked = min(places, 2 * last.coroutines) + (0 if last.coroutines and not last.sync else room)
        return asked or (self._try() if room or places else 0)

    def brought(self, queue: str, sync: int, coroutines: int, alone: int = 0, longest: int = 0) -> None:
        """Record what a claim from `queue` brought; an empty claim changes nothing.

        `alone` counts the sync jobs that run alone, `longest` the characters of the longest payload.
        """
        if sync + coroutines:
            known = (1 - FORGOTTEN) * self._last.get(queue, _NOTHING).longest
            share = alone / sync if sync else 0.0
            self._last[queue] = _Brought(sync, coroutines, share, max(longest, known))

    def _try(self) -> int:
        # One job of one queue a second: it may have to be given back.
        now = time.monotonic()
        if now - self._tried < TRY_SECONDS:
            return 0
        self._tried = now
        return 1

    def wants_coroutines(self, places: int) -> bool:
        """Whether to read the queues while the threads have no room: if a queue brings coroutines, or once a second."""
        now = time.monotonic()
        if places <= 0 or not (
            any(last.coroutines for last in self._last.values()) or now - self._looked >= TRY_SECONDS
        ):
            return False
        self._looked = now
        return True


class OpenedJobs:
    """How many were opened, by queue. A slot that was freed here is free for nobody else until its job is claimed.

    The settler and the claimer open jobs; the claimer takes the numbers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._next = 0.0

    def add(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.update(counts)

    def take(self, most: int) -> dict[str, int]:
        """Up to `most` by queue, and forget all; {} if there are none, or it is too soon."""
        if not self._counts or time.monotonic() < self._next:
            return {}
        with self._lock:
            found, self._counts = self._counts, Counter()
        self._next = time.monotonic() + OPENED_SECONDS
        return {queue: min(count, most) for queue, count in found.items()}

    def forget(self) -> None:
        """Forget all: a claim has just asked for as many jobs as there is room for."""
        if self._counts:
            with self._lock:
                self._counts = Counter()

    @property
    def wait_seconds(self) -> float | None:
        """How soon take() is to be called; None: not before more jobs are opened."""
        return max(0.0, self._next - time.monotonic()) if self._counts else None


@dataclass(slots=True)
class Round:
    """One round of claims: how many more jobs there is room for, and how many were asked for and claimed."""

    room: int
    places: int
    limit: int
    claimed: int = 0
    asked: int = 0

    def add(self, taken: Accepted, most: int) -> None:
        """Count a claim of up to `most` jobs."""
        self.claimed, self.asked, self.limit = self.claimed + taken.kept, self.asked + most, self.limit - taken.kept
        self.room, self.places = self.room - taken.calls, self.places - taken.coroutines


class Fetcher:
    """Claims jobs on the main thread's connection and gives them to the pool."""

    def __init__(self, child: Child, settler: Settler) -> None:
        self._child, self._options, self._using = child, child.options, child.using
        self._pool, self._settler, self._turn = child.pool, settler, child.turn
        self._claimer = Claimer(child.name, child.using, queues=child.options.selection.queues, hand_over=True)
        self._demand = Demand()
        self.opened = OpenedJobs()
        self._unknown = UnknownTasks()
        #: each with whether other jobs that may begin can be behind those that it puts back
        self._rules = [(child.breakers.sift, True), (child.budget.sift, True)]
        if not (self._options.drain or self._options.once):
            self._rules.insert(0, (self._unknown.sift, False))
        self._unkept = False
        self._strays = False  # leases may exist in our name that are not in hand
        self._met = False  # a due job in the last round of claims, or a queue that could not be asked
        #: whether the last claim asked every queue and none had a due job; a drain looks behind limits, too
        self.empty = False
        #: whether the last claim has left jobs to pass over, behind which there may be others
        self.more = False
        self.last_claim = time.monotonic()
        self.outage = child.outage("claim")
        self._looks, self._looks_told = 0, 0.0

    def claim(self, *, notified: bool = False) -> int | None:
        """Fill the threads, a little ahead of them, and the places for coroutines; returns how many jobs were kept.

        None when there is no room for any, and no queue was asked. `notified`: a job was announced.
        """
        slot, concurrency = self._child.slot, self._child.concurrency
        guess, self.empty, self.more = notified and self.empty, False, False
        room, places, limit = self._room(), self._pool.places, self._limit()
        opened = self._opened(room, limit)
        room = room if room > 0 else sum(opened.values())
        if limit <= 0 or (room <= 0 and not self._demand.wants_coroutines(places)):
            slot.room = 0
            self._look_again()
            return None
        # Before the queues are read: a process that commits a job later then finds that this child has room.
        slot.room = 0 if opened else _worth(limit, room, places)
        faults, found = sum(retries.values()), Round(room, places, limit)
        concurrency.begin()
        try:
            self._release_strays()
            self._met = False
            # Before the look: what is opened after it would be in neither. What the look puts behind gates was met.
            limited = self._limited_wait()
            for head in self._heads(guess):
                most = min(self._ask(head.queue, found.room, found.places), found.limit, self._batch())
                most = min(most, opened.get(head.queue, 0)) if opened else most
                if most <= 0 or self._unknown.leaves(head.queue):
                    self._met = True
                    continue
                taken = self._claim_from(head, most, found.room, found.places)
                self._count(found, head, most, taken, again=bool(opened))
            self.empty = not self._met and not limited
            self.outage.over()
            concurrency.claimed(found.claimed, found.asked)
        except (Error, DatabaseBusy) as error:
            self.outage.met(error)
        self._strays = self._strays or sum(retries.values()) != faults
        slot.room = 0 if self.outage.failures or opened else _worth(found.limit, found.room, found.places)
        self._note(found.claimed, found.asked)
        return found.claimed

    def _count(self, found: Round, head: Head, most: int, taken: Accepted, *, again: bool) -> None:
        """Note a claim of up to `most` jobs. `again`: opened jobs that it has left are asked for once more."""
        # Of a queue in which it has left some it was asked for no more than it has found.
        found.add(taken, taken.kept if self._claimer.more else most)
        if self._claimer.more:
            self.more = self._met = True
            if again:
                self.opened.add({head.queue: most - taken.kept})

    def _opened(self, room: int, limit: int) -> dict[str, int]:
        """How many jobs to claim by queue, while threads have no room, because this process has opened so many."""
        if room > 0 or limit <= 0:
            self.opened.forget()
            return {}
        return self.opened.take(self._pool.allowed)

    def _note(self, claimed: int, asked: int) -> None:
        if claimed or self.more:
            self.last_claim = time.monotonic()
        if claimed:
            self._child.use_quota(claimed)
        elif detail.isEnabledFor(logging.DEBUG):
            self._tell_look()
        if asked and claimed >= asked:
            # There may be more jobs than could be taken.
            self._child.wakeups.wake()

    def _tell_look(self) -> None:
        """Log looks that found nothing, together: there are many of them."""
        self._looks += 1
        if (now := time.monotonic()) - self._looks_told >= LOOKS_SECONDS:
            looks = count_of(self._looks, "look")
            detail.debug("%s%s at the queues found nothing to claim", self._child.label, looks)
            self._looks, self._looks_told = 0, now

    def _room(self) -> int:
        """How many more jobs the threads can take: a batch, as soon as half of the waiting jobs have been taken.

        So the next batch is claimed while this one runs.
        """
        pool, ahead = self._pool, 0
        threads = self._child.concurrency.limit(pool.held)
        if threads != pool.allowed:
            pool.allow(threads)
        if self._settler.mean_run_seconds is not None:
            ahead = int(AHEAD_SECONDS * pool.moving / max(self._settler.mean_run_seconds, 1e-5))
        most = threads + min(ahead, 2 * self._batch())
        pool.low_water = (most - threads) // 2
        return most - pool.in_threads if pool.waiting <= pool.low_water else 0

    def _heads(self, guess: bool) -> list[Head]:
        selection = self._options.selection
        if self._options.drain or self._options.once:
            selection.forget()
        return retry_transient("claim", partial(selection.heads, self._using, guess=guess), using=self._using)

    def _limited_wait(self) -> bool:
        """Whether a worker that ends when nothing is due stays for jobs that a limit holds back for a while."""
        options = self._options
        # Without a reaper it opens no gates, and perhaps nobody does.
        return (options.drain or options.once) and options.reaper and any_limited(options.selection.serves, self._using)

    def _limit(self) -> int:
        """The most jobs that may be claimed now, for threads and coroutines together."""
        if self._is_unkept() or self._settler.unwritten or (self.outage.failures and self._pool.held):
            return 0
        quota = self._child.quota
        return self._pool.room if quota is None else min(self._pool.room, quota)

    def _is_unkept(self) -> bool:
        """Whether no lease was renewed for the length of a lease: a job that is claimed now would outlive its own."""
        silent = self._child.unrenewed_seconds
        if (unkept := silent > self._options.lease_seconds) and not self._unkept:
            logger.warning(
                "%s: no lease was renewed for %.0f s; no jobs are claimed until leases are renewed again",
                self._child.name,
                silent,
            )
        self._unkept = unkept
        return unkept

    def _ask(self, queue: str, room: int, places: int) -> int:
        """How many jobs to claim from `queue`; batches leave a lease slot for every thread and coroutine."""
        batch, pool = batch_of(queue), self._pool
        free = max(0, pool.allowed - pool.in_threads)
        asked = self._demand.ask(queue, room, places, batch, free=free, held=pool.held)
        if batch == 1:
            return asked
        return min(asked, pool.room - self._options.concurrency - self._options.async_concurrency)

    def _batch(self) -> int:
        options, threads = self._options, self._pool.allowed
        return max(threads, options.batch_size * threads // options.concurrency)

    def _look_again(self) -> None:
        """Check without a claim whether the database answers again, which long jobs would delay otherwise."""
        if not self.outage.failures or self._settler.unwritten or time.monotonic() < self.outage.next_try:
            return
        try:
            self._strays = True
            self._release_strays()
            self.outage.over()
        except (Error, DatabaseBusy) as error:
            self.outage.met(error)

    def _claim_from(self, head: Head, most: int, room: int, places: int) -> Accepted:
        queue, slot = head.queue, self._child.slot
        lease_seconds = load().queue_lease_seconds(queue, self._options.lease_seconds)
        claimed_at = time.monotonic()
        longest_payload()
        # A job with a rate that waited for a thread would start late, and perhaps together with many others.
        paced_max = max(0, self._pool.allowed - self._pool.in_threads) + places
        with self._turn:
            leases = self._claimer.claim(queue, most, lease_seconds=lease_seconds, head=head, paced_max=paced_max)
        if leases:
            ms = 1000 * (time.monotonic() - claimed_at)
            logger.debug("%sclaimed %d from %s in %.1f ms", self._child.label, len(leases), one_line(queue), ms)
        longest = longest_payload()
        self._met = self._met or bool(leases or self._claimer.closed)
        leases = self._sift(leases)
        # Before threads take the jobs: a job may end this process at once, and must count as started.
        slot.claimed += len(leases)
        taken = self._pool.take(leases, room, places, claimed_at)
        slot.claimed -= len(taken.surplus)
        self._demand.brought(queue, taken.sync, taken.coroutines, taken.alone, longest)
        self._options.selection.asked(queue, brought=bool(leases))
        if taken.surplus:
            # If this fails, they are released as strays before the next claim.
            self._strays = True
            with self._turn, suppress(Error, DatabaseBusy):
                transitions.release_many(taken.surplus)
                self._strays = False
                # A process that looked meanwhile did not see them.
                self._child.wakeups.wake()
        return taken

    def _sift(self, leases: list[Lease]) -> list[Lease]:
        """Put back the jobs that may not begin here, by each of the rules; returns the rest."""
        for sift, others_behind in self._rules:
            # If it fails, what was claimed is released before the next claim.
            strays, self._strays = self._strays, True
            leases, due, waiting = sift(leases)
            if due or waiting:
                with self._turn, suppress(Error, DatabaseBusy):
                    transitions.release_many(due)
                    for (seconds, reason), group in waiting.items():
                        transitions.snooze_many(group, delay_seconds=seconds, reason=reason)
                    self._strays = strays
                if others_behind:
                    self._pool.wake()
            else:
                self._strays = strays
        return leases

    def _release_strays(self) -> None:
        """Release leases in our name that are not in hand: a claim was committed and its answer was lost."""
        if self._strays:
            # Read first: a lease that the settler writes meanwhile is no stray.
            in_hand = self._pool.keys()
            held = transitions.held_by(self._child.name, using=self._using)
            transitions.release_many([lease for lease in held if (lease.job_id, lease.fence) not in in_hand])
            self._strays = False


def _worth(limit: int, room: int, places: int) -> int:
    """The room that is shown to other processes: a free thread can take any job, a place only a coroutine."""
    return 2 * min(limit, room) if limit > 0 and room > 0 else int(limit > 0 and places > 0)
