"""How jobs come into a child: how many to ask for, which queues to ask, what to do when the database is away."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from django.db import Error

from jobqueue import transitions
from jobqueue.conf import load
from jobqueue.db.fields import longest_payload
from jobqueue.db.retry import retries, retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.transitions import Lease
from jobqueue.transitions.claiming.candidates import Head
from jobqueue.transitions.claiming.claimer import Claimer
from jobqueue.worker.child.circuit_breaker import CircuitBreaker
from jobqueue.worker.child.concurrency_limit import ConcurrencyLimit
from jobqueue.worker.child.demand import Demand
from jobqueue.worker.child.outage import Outage
from jobqueue.worker.child.settler import Settler
from jobqueue.worker.run.batch import batch_of
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.run.waiting import Accepted
from jobqueue.worker.shared.scoreboard import Scoreboard
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

SLOWED = "runs of this task fail for a reason outside of it; one at a time is tried"
AHEAD_SECONDS = 0.5  # jobs are claimed ahead of free threads for at most this much expected work


class Fetcher:
    """Claims on the main thread's connection and fills the pool."""

    def __init__(
        self,
        options: Options,
        name: str,
        scoreboard: Scoreboard,
        index: int,
        pool: Pool,
        settler: Settler,
        concurrency: ConcurrencyLimit,
        breaker: CircuitBreaker,
        turn: AbstractContextManager[Any],
    ) -> None:
        self._options, self._name, self._using = options, name, options.database
        self._pool, self._settler, self._concurrency, self._breaker, self._turn = (
            pool,
            settler,
            concurrency,
            breaker,
            turn,
        )
        self._header, self._slot, self._wakeups = scoreboard.header, scoreboard.slots[index], scoreboard.wakeups
        self._told = False
        self._claimer = Claimer(name, options.database)
        self._demand = Demand()
        self._strays = False
        self._met = False  # a due job in the last round of claims, or a queue that could not be asked
        #: whether the last claim asked every queue and none had a due job
        self.empty = False
        self.outage = Outage(name, "claim", options.database, concurrency)

    def claim(self, quota: int | None, *, notified: bool = False) -> int | None:
        """Fill the threads, a little ahead of them, and the places for coroutines; how many jobs were kept.

        At most `quota`. None when there is no room for any, and nothing was asked. `notified`: a job was announced.
        """
        guess, self.empty = notified and self.empty, False
        room, places, limit = self._room(), self._pool.places, self._limit(quota)
        if limit <= 0 or (room <= 0 and not self._demand.wants_coroutines(places)):
            self._slot.room = 0
            return None
        # Before the look: whoever commits a job after it and rings finds that we have room.
        self._slot.room = _worth(limit, room, places)
        claimed, asked, faults = 0, 0, sum(retries.values())
        self._concurrency.begin()
        try:
            self._release_strays()
            self._met = False
            if self._options.drain or self._options.once:
                self._options.selection.forget()
            for head in self._heads(guess):
                most = min(self._ask(head.queue, room, places), limit - claimed, self._batch())
                if most <= 0:
                    self._met = True
                else:
                    taken = self._claim_from(head, most, room, places)
                    claimed, asked = claimed + taken.kept, asked + most
                    room, places = room - taken.calls, places - taken.coroutines
            self.empty = not self._met and not self._breaker.holds
            self.outage.over()
            self._concurrency.claimed(claimed, asked)
        except (Error, DatabaseBusy) as error:
            self.outage.met(error)
        if sum(retries.values()) != faults:
            self._strays = True
        self._slot.room = 0 if self.outage.failures else _worth(limit - claimed, room, places)
        if asked and claimed >= asked:
            # There may be more than we could take.
            self._wakeups.wake()
        return claimed

    def _room(self) -> int:
        """How many more jobs the threads can take: a batch, as soon as half of what may wait for them has been taken.

        So the next batch is claimed while this one runs.
        """
        pool, ahead = self._pool, 0
        threads = self._concurrency.limit(pool.held)
        if threads != pool.allowed:
            pool.allow(threads)
        if self._settler.mean_run_seconds is not None:
            ahead = int(AHEAD_SECONDS * pool.moving / max(self._settler.mean_run_seconds, 1e-5))
        most = threads + min(ahead, 2 * self._batch())
        pool.low_water = (most - threads) // 2
        return most - pool.in_threads if pool.waiting <= pool.low_water else 0

    def _heads(self, guess: bool) -> list[Head]:
        return retry_transient(partial(self._options.selection.heads, self._using, guess=guess), using=self._using)

    def _limit(self, quota: int | None) -> int:
        """The most that may be claimed now, whoever is to run it."""
        if self._unkept() or self._settler.unwritten or (self.outage.failures and self._pool.held):
            return 0
        return self._pool.room if quota is None else min(self._pool.room, quota)

    def _unkept(self) -> bool:
        """Whether no lease has been renewed for a whole one: what is claimed now would run out while it runs."""
        silent = time.monotonic() - float(self._header.renewed_at)
        if (unkept := silent > self._options.lease_seconds) and not self._told:
            logger.warning("%s: no lease was renewed for %.0f s; nothing is claimed until one is", self._name, silent)
        self._told = unkept
        return unkept

    def _ask(self, queue: str, room: int, places: int) -> int:
        """How many jobs to claim from `queue`; batches leave a lease slot for every thread and coroutine."""
        batch, pool = batch_of(queue), self._pool
        asked = self._demand.ask(
            queue, room, places, batch, free=max(0, pool.allowed - pool.in_threads), held=pool.held
        )
        if batch == 1:
            return asked
        return min(asked, pool.room - self._options.concurrency - self._options.async_concurrency)

    def _batch(self) -> int:
        options, threads = self._options, self._pool.allowed
        return max(threads, options.batch_size * threads // options.concurrency)

    def look_again(self) -> None:
        """Ask without a claim whether the database is back: jobs that run for long must not keep it from being seen."""
        if not self.outage.failures or self._settler.unwritten or time.monotonic() < self.outage.next_try:
            return
        try:
            self._strays = True
            self._release_strays()
            self.outage.over()
        except (Error, DatabaseBusy) as error:
            self.outage.met(error)

    def _claim_from(self, head: Head, most: int, room: int, places: int) -> Accepted:
        queue = head.queue
        lease_seconds = load().queue_lease_seconds(queue, self._options.lease_seconds)
        claimed_at = time.monotonic()
        longest_payload()
        with self._turn:
            leases = self._claimer.claim(queue, most, lease_seconds=lease_seconds, head=head)
        longest = longest_payload()
        self._met = self._met or bool(leases)
        leases = self._park(leases)
        # Before their threads take them: a job may end this process at once, and was started all the same.
        self._slot.claimed += len(leases)
        taken = self._pool.take(leases, room, places, claimed_at)
        self._slot.claimed -= len(taken.surplus)
        self._demand.brought(queue, taken.sync, taken.coroutines, taken.alone, longest)
        self._options.selection.asked(queue, brought=bool(leases))
        if taken.surplus:
            # If this fails they are in our name and not in hand, and given back as such before the next claim.
            self._strays = True
            with self._turn, suppress(Error, DatabaseBusy):
                transitions.release_many(taken.surplus)
                self._strays = False
                # Whoever looked meanwhile did not see them.
                self._wakeups.wake()
        return taken

    def _park(self, leases: list[Lease]) -> list[Lease]:
        """Give back jobs of tasks that are slowed down, out of the way of others; those that may run."""
        leases, parked = self._breaker.sift(leases)
        if parked:
            # As for those that are not taken.
            self._strays = True
            with self._turn, suppress(Error, DatabaseBusy):
                for seconds, group in parked.items():
                    transitions.snooze_many(group, delay_seconds=seconds, reason=SLOWED)
                self._strays = False
            # There may be others behind them.
            self._pool.wake()
        return leases

    def _release_strays(self) -> None:
        """Give back leases in our name that are not in hand: a claim was committed and its answer was lost."""
        if self._strays:
            # Asked first: what the settler writes meanwhile is not a stray either.
            in_hand = self._pool.keys()
            held = transitions.held_by(self._name, using=self._using)
            transitions.release_many([lease for lease in held if (lease.job_id, lease.fence) not in in_hand])
            self._strays = False


def _worth(limit: int, room: int, places: int) -> int:
    """What a ring should go by: a free thread can take any job, a place only coroutines."""
    return 2 * min(limit, room) if limit > 0 and room > 0 else int(limit > 0 and places > 0)
