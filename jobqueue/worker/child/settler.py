"""The thread of a child that writes outcomes, on a connection of its own, while the main thread claims."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from jobqueue import signals
from jobqueue.db.sessions import limit_idle_transactions
from jobqueue.exceptions import DatabaseBusy
from jobqueue.worker.child.child import Child
from jobqueue.worker.child.outcomes import settle, settle_alone
from jobqueue.worker.run import task_signals
from jobqueue.worker.run.attempt import Outcome

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

FLUSH_SECONDS = 0.003  # how long outcomes may gather while jobs are still coming
IDLE_SECONDS = 60.0
LOCKED_SECONDS = 1.0  # between two attempts to write an outcome whose row another session has locked
UNEXPECTED_SECONDS = 0.5  # an error that repeats must not keep a processor busy


class Settler:
    """Writes the outcomes of a child's pool, as many together as have gathered; tries again what cannot be written.

    With two `threads`, outcomes that are committed one by one are written by both, and the server commits both at once.
    """

    def __init__(self, child: Child, *, threads: int) -> None:
        self._pool, self._slot, self._turn = child.pool, child.slot, child.turn
        self._breakers, self._budget = child.breakers, child.budget
        self._watched, self.outage = child.watched, child.outage("write outcomes")
        self._helper = HelperThread("settler-2", child.using) if threads > 1 else None
        self.unwritten: list[Outcome] = []
        self._locked: list[Outcome] = []
        self._look_at = 0.0
        self.mean_run_seconds: float | None = None
        self.last_written = 0.0
        self._using = child.using
        threading.Thread(target=self._work, name="settler", daemon=True).start()

    def _work(self) -> None:
        limit_idle_transactions(self._using)
        while True:
            earlier, ended = self.unwritten, list[Outcome]()
            try:
                ended = self._gather()
                earlier = self.unwritten + self._locked_that_are_due()
                if not (ended or earlier):
                    continue
                # Before the writes, which take time: the next of these jobs are about to begin.
                self._breakers.ended(ended)
                self._budget.ended(ended)
                left = self._write(earlier, again=True)
                if left and self.outage.failures:
                    left = self._write_alone(left)
                # If the database was unreachable for one outcome, it is for the others.
                self._note(left + ended if left else self._write(ended, again=False), ended)
            except BaseException:
                # SystemExit of a signal's receiver too: without this thread nothing would be written any more. The
                # monitor renews the leases of what is kept as long as this process lives.
                self.unwritten = earlier + ended
                _complain("unexpected error in the settler; it continues")
                time.sleep(UNEXPECTED_SECONDS)

    def _gather(self) -> list[Outcome]:
        """Wait for outcomes; returns [] when it is time to write earlier ones again."""
        pause = self.outage.next_try - time.monotonic() if self.unwritten else IDLE_SECONDS
        if self._locked:
            pause = min(pause, self._look_at - time.monotonic())
        ended = self._pool.ended(max(0.0, pause))
        if ended and self._pool.hurried and not ended[0].ack_each:
            time.sleep(FLUSH_SECONDS)
            ended += self._pool.ended(0)
        return ended

    def _locked_that_are_due(self) -> list[Outcome]:
        """The outcomes whose rows were locked, if it is time to try them again."""
        if time.monotonic() < self._look_at:
            return []
        found, self._locked = self._locked, []
        self._look_at = time.monotonic() + LOCKED_SECONDS
        return found

    def _write(self, outcomes: Sequence[Outcome], *, again: bool, shared: bool = True) -> list[Outcome]:
        """Write `outcomes`; returns those for which the database was unreachable."""
        # In both threads: a receiver of signals that hangs must not keep outcomes from being written.
        signals.dispatch_via(task_signals.dispatch)
        left: list[Outcome] = []
        for group in self._groups(outcomes, again, left) if shared else [[outcome] for outcome in outcomes]:
            if left:
                left += group
                continue
            left += self._free_places(group, self._settled(group, again=again))
        return left

    def _groups(self, outcomes: Sequence[Outcome], again: bool, left: list[Outcome]) -> Iterator[list[Outcome]]:
        """The outcomes that this thread writes, each list by one settle().

        Those with ack_each are written one by one, so that the thread of each continues while the next one is written;
        the helper thread writes every second one. What it cannot write is added to `left` at the end.
        """
        each = [outcome for outcome in outcomes if outcome.ack_each]
        others, helped = each[1::2], False
        if self._helper is not None and others:
            helped = self._helper.begin(partial(self._write, others, again=again, shared=False))
        for outcome in each[::2] if helped else each:
            yield [outcome]
        if together := [outcome for outcome in outcomes if not outcome.ack_each]:
            yield together
        if self._helper is not None and helped:
            beside = self._helper.end()
            left += others if beside is None else beside

    def _write_alone(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write them one by one, the shortest first: perhaps the connection is lost only when a long one is sent."""
        left: list[Outcome] = []
        for outcome in sorted(outcomes, key=lambda outcome: outcome.sent_chars):
            if left:
                left.append(outcome)
                continue
            left += self._free_places([outcome], self._settled([outcome], again=True, alone=True))
        return left

    def _settled(self, outcomes: Sequence[Outcome], *, again: bool, alone: bool = False) -> list[Outcome]:
        """Write them together; returns those that could not be written now.

        After an unexpected error each is written by itself, so that only the one that causes it is given up.
        """
        begun, unwritten = time.monotonic(), list[Outcome]()
        try:
            with self._turn, self._watched():
                unwritten = (
                    settle_alone(outcomes[0], self._slot) if alone else settle(outcomes, self._slot, again=again)
                )
            ms = 1000 * (time.monotonic() - begun)
            detail.debug("wrote the outcomes of %d runs in %.1f ms", len(outcomes), ms)
        except BaseException:
            if len(outcomes) > 1:
                _complain(f"unexpected error while {len(outcomes)} outcomes were written; they are written one by one")
                return [left for outcome in outcomes for left in self._settled([outcome], again=True)]
            _complain(
                f"job {outcomes[0].key[0]}: its outcome could not be written; its lease will expire and be reaped"
            )
        return unwritten

    def _free_places(self, outcomes: Sequence[Outcome], unwritten: Sequence[Outcome]) -> list[Outcome]:
        """Free the places of the jobs that are settled; returns `unwritten` without those whose row is locked."""
        # These are tried later, by themselves: no other outcome has to wait for them.
        self._locked += [outcome for outcome in unwritten if outcome.row_locked]
        kept = {outcome.key for outcome in unwritten}
        self._pool.settled(outcome.lease for outcome in outcomes if outcome.key not in kept)
        task_signals.keep_up()
        return [outcome for outcome in unwritten if not outcome.row_locked]

    def _note(self, unwritten: list[Outcome], ended: Sequence[Outcome]) -> None:
        """Keep what could not be written, and measure how long jobs run."""
        self.unwritten, self.last_written = unwritten, time.monotonic()
        if unwritten:
            problem = next((outcome.problem for outcome in unwritten if outcome.problem is not None), None)
            self.outage.met(problem or DatabaseBusy("nothing was written"))
        else:
            self.outage.over()
        if self._pool.waiting <= self._pool.low_water:
            self._pool.wake()
        for outcome in ended:
            if outcome.coroutine:
                continue  # says nothing about how soon a thread will be free
            mean, seconds = self.mean_run_seconds, outcome.run_seconds
            # Faster up than down: too long a list makes others wait, too short a one costs a claim.
            weight = 0.1 if mean is None or seconds < mean else 0.2
            self.mean_run_seconds = seconds if mean is None else mean + weight * (seconds - mean)


class HelperThread:
    """Writes half of the outcomes that are committed one by one, on a connection of its own.

    Starts with the first work. A daemon: a server that does not answer must not keep the process alive.
    """

    def __init__(self, name: str, using: str) -> None:
        self._name, self._using = name, using
        self._todo: SimpleQueue[Callable[[], list[Outcome]]] = SimpleQueue()
        self._done: SimpleQueue[list[Outcome] | None] = SimpleQueue()
        self._started = False

    def begin(self, work: Callable[[], list[Outcome]]) -> bool:
        """Start `work`; False if the system cannot start a thread. Call end() before the next begin()."""
        if not self._started:
            try:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            except RuntimeError:
                return False
            self._started = True
        self._todo.put(work)
        return True

    def end(self) -> list[Outcome] | None:
        """Wait for the work; returns what it returned, None if it raised."""
        return self._done.get()

    def _work(self) -> None:
        limit_idle_transactions(self._using)
        while True:
            work, found = self._todo.get(), None
            try:
                found = work()
            except BaseException:
                # SystemExit of a signal's receiver too: another thread waits for the end.
                _complain(f"unexpected error in {self._name}; it continues")
            self._done.put(found)
            del work, found  # they hold outcomes, and so the errors of jobs


def _complain(words: str) -> None:
    # A log handler of the project raises where a job has closed its stream.
    with suppress(Exception):
        logger.exception(words)
