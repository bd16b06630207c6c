"""The thread of a child that writes outcomes, on a connection of its own, while the main thread claims."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import chain
from typing import Any

from jobqueue import signals
from jobqueue.worker import task_signals
from jobqueue.worker.brake import Brake
from jobqueue.worker.outage import Outage
from jobqueue.worker.perform import Outcome
from jobqueue.worker.pool import Pool
from jobqueue.worker.second_hand import SecondHand
from jobqueue.worker.settle import settle, settle_alone

logger = logging.getLogger("jobqueue.worker")

FLUSH_SECONDS = 0.003  # how long outcomes may gather while jobs are still coming
IDLE_SECONDS = 60.0
LOCKED_SECONDS = 1.0  # how often an end is tried to be written whose row somebody has locked
UNEXPECTED_SECONDS = 0.5  # an error that comes again and again must not keep a processor busy


class Settler:
    """Writes what `pool` has ended, together as far as it has gathered; what cannot be written is kept and tried again.

    `turn` is held while writing: on a database with one writer, two connections of one process would only wait for
    each other in sleeps. Elsewhere ends that are committed one by one are written by two `hands`: the server commits
    both at once. `watched` surrounds each write.
    """

    def __init__(
        self,
        pool: Pool,
        region: Any,
        outage: Outage,
        brake: Brake,
        turn: AbstractContextManager[Any],
        hands: int,
        watched: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._pool, self._region, self._outage, self._brake, self._turn = pool, region, outage, brake, turn
        self._second: SecondHand[list[Outcome]] | None = SecondHand("settler-2") if hands > 1 else None
        self._watched = watched
        self.unwritten: list[Outcome] = []
        self._locked: list[Outcome] = []
        self._look_at = 0.0
        self.mean_run_seconds: float | None = None
        self.last_written = 0.0
        threading.Thread(target=self._work, name="settler", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._round()
            except BaseException:
                # SystemExit of a signal's receiver included: without this thread nothing would ever be written again.
                _complain("the settler met an unexpected error and goes on")
                time.sleep(UNEXPECTED_SECONDS)

    def _round(self) -> None:
        pause = self._outage.next_try - time.monotonic() if self.unwritten else IDLE_SECONDS
        if self._locked:
            pause = min(pause, self._look_at - time.monotonic())
        ended = self._pool.ended(max(0.0, pause))
        if ended and self._pool.hurried and not ended[0].ack_each:
            time.sleep(FLUSH_SECONDS)
            ended += self._pool.ended(0)
        if ended or self.unwritten or self._locked:
            self._write(ended)
            if self._pool.waiting <= self._pool.low_water:
                self._pool.wake()
        for outcome in ended:
            if outcome.coroutine:
                continue  # says nothing about how soon a thread will be free
            mean, seconds = self.mean_run_seconds, outcome.run_seconds
            # Sooner up than down: too long a list makes others wait, too short a one costs a claim.
            weight = 0.1 if mean is None or seconds < mean else 0.2
            self.mean_run_seconds = seconds if mean is None else mean + weight * (seconds - mean)

    def _write(self, ended: Sequence[Outcome]) -> None:
        locked = self._locked_that_are_due()
        try:
            # Before the writes, which take their time: the next of these jobs are about to begin.
            self._brake.ended(ended)
            left = self._write_all(self.unwritten, again=True)
            if left and self._outage.failures:
                left = self._write_alone(left)
            # Away for one, away for all.
            left += locked if left else self._write_all(locked, again=True)
            left += ended if left else self._write_all(ended, again=False)
        except BaseException:
            # Nobody else would write them, and the keeper renews their leases as long as this process lives.
            self.unwritten = [*self.unwritten, *locked, *ended]
            raise
        self.unwritten = left
        self.last_written = time.monotonic()
        if left:
            self._outage.met(None)
        else:
            self._outage.over()

    def _locked_that_are_due(self) -> list[Outcome]:
        """Those whose rows somebody had locked, if it is time to look again."""
        if time.monotonic() < self._look_at:
            return []
        found, self._locked = self._locked, []
        self._look_at = time.monotonic() + LOCKED_SECONDS
        return found

    def _write_all(self, outcomes: Sequence[Outcome], *, again: bool) -> list[Outcome]:
        # One by one where each is to be committed by itself: its thread goes on while the next one is written.
        each = [[outcome] for outcome in outcomes if outcome.ack_each]
        together = [outcome for outcome in outcomes if not outcome.ack_each]
        others = each[1::2]
        helped = self._second is not None and others and self._second.begin(partial(self._write_groups, others, again))
        left = self._write_groups((each[::2] if helped else each) + ([together] if together else []), again)
        if self._second is not None and helped:
            beside = self._second.end()
            left += beside if beside is not None else list(chain(*others))
        return left

    def _write_groups(self, groups: Sequence[list[Outcome]], again: bool) -> list[Outcome]:
        left: list[Outcome] = []
        for group in groups:
            left += group if left else self._write_group(group, partial(settle, group, self._region, again=again))
        return left

    def _write_alone(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Again, one by one and the shortest first: the database may be away for a long one only."""
        left: list[Outcome] = []
        for one in sorted(outcomes, key=lambda outcome: outcome.sent_chars):
            left += [one] if left else self._write_group([one], partial(settle_alone, one, self._region))
        return left

    def _write_group(self, outcomes: Sequence[Outcome], write: Callable[[], list[Outcome]]) -> list[Outcome]:
        """Call `write`; free the places of those `outcomes` that are written or given up; those it was away for."""
        left: list[Outcome] = []
        # Whichever hand writes: a receiver that hangs must not keep ends from being written.
        signals.carry(task_signals.give)
        try:
            with self._turn, self._watched():
                left = write()
        except BaseException:
            _complain(f"outcomes of {len(outcomes)} jobs could not be settled; their leases will be reaped")
        kept = {outcome.key for outcome in left}
        # Later and alone: nobody's end is to wait for them.
        self._locked += [outcome for outcome in left if outcome.row_locked]
        left = [outcome for outcome in left if not outcome.row_locked]
        self._pool.settled(outcome.lease for outcome in outcomes if outcome.key not in kept)
        task_signals.keep_up()
        return left


def _complain(words: str) -> None:
    # A handler of the project's may raise, where a job has closed its stream.
    with suppress(Exception):
        logger.exception(words)
