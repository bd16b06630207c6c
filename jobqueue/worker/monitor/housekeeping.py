"""The monitor's less urgent duties: rows of workers, reaping, chores for the whole database, and stacks on request."""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue

from jobqueue.conf import load
from jobqueue.db import fault_vendor
from jobqueue.db.clock import compare_clocks
from jobqueue.gates.kinds import TICK_SECONDS
from jobqueue.gates.timing import Changes, any_timed, any_waits, open_due
from jobqueue.maintenance import reaper, worker_rows
from jobqueue.outbox import routes
from jobqueue.runs.alone import queues_alone
from jobqueue.signals import Dispatch
from jobqueue.transitions import Reaped
from jobqueue.worker.monitor.chores import BATCH, STEP_SECONDS, Chore, Chores
from jobqueue.worker.monitor.duty_thread import DutyThread
from jobqueue.worker.monitor.preflight import UNSERVED_SECONDS, warn_unserved
from jobqueue.worker.monitor.troubles import Troubles
from jobqueue.worker.shared.counters import RetryTotal, retry_totals
from jobqueue.worker.shared.processes import rss_bytes
from jobqueue.worker.shared.scoreboard import Scoreboard, State
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

# On a database with one writer, renewals wait for the end of a batch of reaping, and other processes try every 0.1 s to
# write: on a busy machine 1,000 leases of 1,000 workers took 20 s, and a monitor that renews nothing for half a lease
# is replaced.
BATCH_OF_ONE_WRITER = 100
BETWEEN_WRITERS_SECONDS = 0.1
UNROUTED_SECONDS = 60.0  # between two counts of events without a destination
STACKS_SECONDS = 0.05  # between two looks whether a child has told its stacks
REQUESTS_SECONDS = 1.0  # between two looks for requests of stacks
STACKS_SILENT_SECONDS = 1.5  # a child that has not answered for so long executes no Python code
ALONE_SECONDS = 2.0  # between two looks for jobs that are to run alone


class Housekeeping:
    """Runs the duties that are due, in a thread of its own.

    `living` returns index and name of each living child. `turn` is held for each batch of reaping: on a database with
    one writer, renewals would hardly ever get the lock between two batches.
    """

    def __init__(
        self,
        options: Options,
        scoreboard: Scoreboard,
        living: Callable[[], list[tuple[int, str]]],
        doubt: Callable[[], None],
        dispatch: Dispatch | None,
        turn: AbstractContextManager[object],
    ) -> None:
        self._options, self._scoreboard, self._living, self._turn = options, scoreboard, living, turn
        self._using = options.database
        self._ended: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._next_rows = self._next_reaping = 0.0
        # A worker that ends when nothing is due would wait for such a job.
        self._next_alone = math.inf if options.once or options.drain else 0.0
        # The first look was before the start of the children.
        self._next_unserved = time.monotonic() + UNSERVED_SECONDS
        # Only /metrics shows the number.
        shown = options.probe_port is not None and load().outbox is not None
        self._next_unrouted = 0.0 if shown else math.inf
        self._reaped, self._running = Reaped(), set[str]()
        #: by index of the child: its name, and the counts as they were last written
        self._retries: dict[int, tuple[str, list[RetryTotal]]] = {}
        #: by index of the child: its name, and its memory as it was last written
        self._memory: dict[int, tuple[str, int]] = {}
        one_writer = fault_vendor(self._using).single_writer
        self._batch = BATCH_OF_ONE_WRITER if one_writer else BATCH
        self._between_seconds = BETWEEN_WRITERS_SECONDS if one_writer else STEP_SECONDS
        self._chores = Chores(
            options.database, self._batch, self._takes_fewer, turn, dispatch, step_seconds=self._between_seconds
        )
        self._gates = GateOpener(options.database, scoreboard, doubt, dispatch, opens=options.reaper)
        self.troubles = Troubles(options.database)
        self._stacks = StackAnswers(scoreboard, options.database)
        self.thread = DutyThread("housekeeping", self.round, options.database, doubt, dispatch)

    def end(self, most_seconds: float) -> None:
        """Wait up to `most_seconds` for a last round of the threads."""
        self.thread.end(most_seconds)
        self._chores.alarm_watch.end(most_seconds)
        self._gates.thread.end(most_seconds)

    def retire(self, name: str, reason: str) -> None:
        """Have the end of worker `name` written to its row, by the thread. Safe in any thread."""
        self._ended.put((name, reason))

    def round(self) -> None:
        do, now = self.thread.do, time.monotonic()
        do(self.write_ends)
        if self._stacks.due:
            do(self.tell_stacks)
        if now >= self._next_rows:
            self._next_rows = now + self._options.heartbeat_seconds
            do(self.renew_workers)
            do(self.report_troubles)
        if now >= self._next_unserved:
            self._next_unserved = now + random.uniform(0.8, 1.2) * UNSERVED_SECONDS
            do(self.warn_of_unserved)
        if now >= self._next_unrouted:
            self._next_unrouted = now + random.uniform(0.8, 1.2) * UNROUTED_SECONDS
            do(self.count_unrouted)
        if now >= self._next_alone:
            self._next_alone = now + random.uniform(0.8, 1.2) * ALONE_SECONDS
            do(self.look_for_alone)
        self._gates.wake_if_asked()
        if self._options.reaper:
            self._reap_if_due()
            for chore in self._chores.due():
                # The others have their turn in the next round: an unreachable database refuses each of them.
                if not do(partial(self.take_turn, chore), f"run the chore {chore.name}"):
                    break
                self.thread.tick()
                self._reap_if_due()

    def take_turn(self, chore: Chore) -> None:
        """Take this worker's turn at a chore. If it has more to do, the next round is soon."""
        if (pause := self._chores.take_turn(chore)) is not None:
            self.thread.next_soon(pause)

    def _reap_if_due(self) -> None:
        if time.monotonic() >= self._next_reaping:
            self._next_reaping = time.monotonic() + random.uniform(0.8, 1.2)
            self.thread.do(self.reap)

    def write_ends(self) -> None:
        """Write the ends that were given to retire()."""
        while not self._ended.empty():
            name, reason = self._ended.get()
            try:
                worker_rows.retire(name, reason, using=self._using)
            except BaseException:
                self._ended.put((name, reason))
                raise

    def renew_workers(self) -> None:
        """Update the heartbeats of the living children, and retire workers that sent none for too long."""
        if names := [name for _, name in self._living()]:
            ahead = compare_clocks(self._using).ahead_seconds
            done = worker_rows.renew(names, using=self._using, clock_ahead_seconds=ahead)
            self.troubles.note_commit(done.seconds)
            self._scoreboard.ask_to_register(index for index, name in self._living() if name in done.missing)
        for index, name in self._living():
            # Only tasks that have failed or have a dependency are counted: most workers write nothing here.
            found = retry_totals([self._scoreboard.retries[index]])
            is_new, shown = found and (name, found) != self._retries.get(index), [total.shown() for total in found]
            # A child that has just started has no row yet: the next heartbeat writes it.
            if is_new and worker_rows.note(name, retries=shown, using=self._using):
                self._retries[index] = name, found
            self._note_memory(index, name)
        if self._options.reaper:
            worker_rows.retire_silent(load().worker_silent_seconds, using=self._using)

    def _note_memory(self, index: int, name: str) -> None:
        """Write the memory of a child if it has changed by a tenth: most heartbeats write none."""
        size = rss_bytes(int(self._scoreboard.slots[index].pid))
        before, written = self._memory.get(index, ("", 0))
        if not size or (name == before and abs(size - written) <= written / 10):
            return
        if worker_rows.note(name, using=self._using, rss_bytes=size):
            self._memory[index] = name, size

    def report_troubles(self) -> None:
        """Write what the host is short of, slow commits, and which children claim nothing although work is due."""
        children = [(name, int(self._scoreboard.slots[index].pid)) for index, name in self._living()]
        self.troubles.report(children)

    def tell_stacks(self) -> None:
        """Ask children for their stacks if somebody wants them, and write the answers; then the next round is soon."""
        self._stacks.work(self._living())
        if self._stacks.waiting:
            self.thread.next_soon(STACKS_SECONDS)

    def warn_of_unserved(self) -> None:
        warn_unserved(self._options)

    def count_unrouted(self) -> None:
        """Count the events for which relays found no route and no subscriber: an index seek per key, 1,000 at most."""
        found = routes.find_unrouted(using=self._using)
        self._scoreboard.header.outbox_unrouted = sum(len(each.ids) for each in found)

    def look_for_alone(self) -> None:
        """Have the supervisor start a process if a job of one of the queues is to run alone."""
        if any(map(self._options.selection.serves, queues_alone(using=self._using))):
            self._scoreboard.header.alone = 1

    def _takes_fewer(self) -> bool:
        """Whether a child runs fewer jobs than it may, because the database is in trouble."""
        slots, most = self._scoreboard.slots, self._options.concurrency
        return any(0 < slots[index].level < most for index, _ in self._living())

    def reap(self) -> None:
        """End one batch of lapsed leases. If the batch was full, the next one follows soon."""
        with self._turn:
            found = reaper.end_batch(using=self._using, limit=self._batch)
        self._scoreboard.header.reaped += found.total
        self._reaped += found
        if found.total == self._batch:
            self._next_reaping = 0.0
            self.thread.next_soon(self._between_seconds)
            return
        done, self._reaped = self._reaped, Reaped()
        if done.total:
            logger.warning("reaped %d lapsed leases: %d requeued, %d dead", done.total, done.requeued, done.dead)
        running = {name for index, name in self._living() if self._scoreboard.slots[index].state == State.RUNNING}
        if running != self._running:
            # They may have been started with other code.
            self._running = running
            self._chores.gate_sweep.soon()
        self._gates.wake()


class StackAnswers:
    """Passes requests for stacks to children and writes their answers: one statement each second, a write for each."""

    def __init__(self, scoreboard: Scoreboard, using: str) -> None:
        self._scoreboard, self._using = scoreboard, using
        self._next = 0.0
        #: by index of the child: its name, and when it was asked
        self._asked: dict[int, tuple[str, float]] = {}

    @property
    def due(self) -> bool:
        """Whether there is something to do: a look, or children that were asked."""
        return bool(self._asked) or time.monotonic() >= self._next

    @property
    def waiting(self) -> bool:
        """Whether a child was asked and its answer is not written."""
        return bool(self._asked)

    def work(self, living: Sequence[tuple[int, str]]) -> None:
        """Write the answers that are there, then look for requests to the `living` children, by index and name."""
        self._write()
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + REQUESTS_SECONDS
        known = {name: index for index, name in living}
        for name in worker_rows.stacks_asked([*known], using=self._using) if known else ():
            if (index := known[name]) not in self._asked:
                self._scoreboard.stacks[index].ask()
                self._asked[index] = name, time.monotonic()

    def _write(self) -> None:
        for index, (name, since) in list(self._asked.items()):
            text = self._scoreboard.stacks[index].answer()
            if text is None and time.monotonic() - since < STACKS_SILENT_SECONDS:
                continue
            content = {"answered": False} if text is None else json.loads(text or b"{}")
            worker_rows.write_stacks(name, content, using=self._using)
            del self._asked[index]
            logger.debug("told where the threads of %s are", name)


#: so long after the last job that waited at a gate, the thread goes on looking often
BUSY_SECONDS = 10.0
#: between two looks at what operators have changed, where that may let jobs start
CHANGES_SECONDS = 0.1
#: between two looks for what is due, right after something was opened
AGAIN_SECONDS = 0.005
#: between two looks whether any job waits at a gate, and between two looks at all where none does
IDLE_SECONDS = 1.0


class GateOpener:
    """Opens what is due every TICK_SECONDS while jobs wait, and anything is limited or paused; else every second.

    As soon as a child has closed a gate, it looks often. `opens`: False to leave the opening to other workers.
    """

    def __init__(
        self,
        using: str,
        scoreboard: Scoreboard,
        doubt: Callable[[], None],
        dispatch: Dispatch | None,
        *,
        opens: bool = True,
    ) -> None:
        self._using, self._scoreboard, self._opens = using, scoreboard, opens
        self._changes = Changes(using)
        self._busy_until = self._next_changes = self._next_gates = self._next_idle = 0.0
        self._met = False
        self.thread = DutyThread("gates", self.round, using, doubt, dispatch)
        self.thread.next_soon(0.0)

    def wake(self) -> None:
        """Start the thread if a gate has a time; called every second, with a connection of the caller's thread."""
        # Jobs that wait for something else were closed before the start, or a child tells of them.
        first, self._met = not self._met, True
        if any_timed(self._using) or (first and any_waits(self._using)):
            self.thread.start()

    def wake_if_asked(self) -> None:
        """Start the thread if a child has closed a gate, or knows a limit, a pause or an open breaker. No statement."""
        if self._is_asked():
            self.thread.start()

    def round(self) -> None:
        """Look at what is due to be looked at."""
        self.thread.next_soon(TICK_SECONDS)
        now = time.monotonic()
        if self._is_asked():
            self._scoreboard.header.gates_closed = 0
            self._stay_busy()
        is_busy = now < self._busy_until
        if now >= self._next_idle:
            self._next_idle = now + IDLE_SECONDS
            self.thread.do(self.look_for_waiting)
        if is_busy and now >= self._next_changes:
            self.thread.do(self.look_for_changes)
        if self._opens and now >= self._next_gates:
            self._next_gates = now + (TICK_SECONDS if is_busy else IDLE_SECONDS)
            self.thread.do(self.open, "open gates")

    def look_for_waiting(self) -> None:
        """Go on looking often if any job waits at a gate."""
        if any_timed(self._using) or any_waits(self._using):
            self._stay_busy()

    def look_for_changes(self) -> None:
        """Have the children read the rules again if they have changed."""
        self._next_changes = time.monotonic() + CHANGES_SECONDS
        if self._changes.look():
            self._scoreboard.header.rules_turn += 1
            self._scoreboard.wakeups.wake_all()
            # What may start now was given a time.
            self._next_gates = 0.0

    def open(self) -> None:
        """Open the gates whose time has come, and wake a child for what was opened."""
        self._changes.open_again()
        # Claims by the rules of before a change would close again what is opened after it.
        if open_due(using=self._using, before=self.look_for_changes):
            self._stay_busy()
            self._scoreboard.wakeups.wake()
            # Of some gates only a part was opened.
            self._next_gates = 0.0
            self.thread.next_soon(AGAIN_SECONDS)

    def _stay_busy(self) -> None:
        now = time.monotonic()
        self._busy_until, self._next_gates = now + BUSY_SECONDS, min(self._next_gates, now + TICK_SECONDS)

    def _is_asked(self) -> bool:
        slots = self._scoreboard.slots
        return bool(self._scoreboard.header.gates_closed) or any(slot.ruled for slot in slots if slot.alive)
