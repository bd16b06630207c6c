"""What a claimer remembers of queues with limits: which they are, when it looked for others, and which are shut."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial

from jobqueue.db.retry import retry_transient
from jobqueue.gates.limits import limited_tasks
from jobqueue.gates.rules import NO_RULES, fresh_rules, rules_to_start_by
from jobqueue.gates.whole_queues import NO_LIMITS, QueueLimits, limits_of_queue, running

#: a claim by one statement passes over tasks with limits; this often the other form looks whether there are any
LOOK_SECONDS = 1.0
#: so long after the last job with a limit, claims of a queue check limits
SEEN_SECONDS = 60.0


class GatedQueues:
    """The queues of one claimer in which jobs with limits were seen."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._seen: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._shut: dict[str, float] = {}
        self._full: set[str] = set()
        #: what operators have set, as it was read for the present claim
        self.known = NO_RULES
        #: what holds for its queue
        self.present = NO_LIMITS

    def limits(self, queue: str) -> QueueLimits:
        """What holds for the whole queue; begins a claim. Raises the database's error if that cannot be read."""
        known = fresh_rules(self._using)
        if known is None:
            known = retry_transient("claim", partial(rules_to_start_by, self._using), using=self._using)
        self.known = known
        self.present = limits_of_queue(queue, self.known)
        return self.present

    def is_shut(self, queue: str, limits: QueueLimits) -> bool:
        """Whether a claim of `queue` would bring nothing: it is paused, full, or its next token is not there yet.

        One statement, and no lock, if it was full when it was last asked.
        """
        if limits.paused or time.monotonic() < self._shut.get(queue, 0.0):
            return True
        most = limits.most
        if most is None or queue not in self._full:
            return False
        if retry_transient("claim", lambda: running(queue, most, self._using), using=self._using) >= most:
            return True
        self._full.discard(queue)
        return False

    def full(self, queue: str) -> None:
        """True if as many jobs of the queue run as its limit allows."""
        self._full.add(queue)

    def look(self, queue: str) -> None:
        """Let the next claim of the queue check its jobs: what it took without that was nothing."""
        self._looked.pop(queue, None)

    def shut(self, queue: str, seconds: float) -> None:
        """The queue has used up its tokens for so long."""
        self._shut[queue] = time.monotonic() + min(seconds, LOOK_SECONDS)

    def excluded(self, queue: str, *, in_one: bool) -> tuple[str, ...] | None:
        """The tasks that a claim of `queue` leaves alone, because they may have limits; None: it has to check its jobs.

        () if no task of this process has a limit and none is paused. `in_one`: a claim by one statement does not see
        what it leaves alone, so now and then the other form looks.
        """
        if self.known.breakers:
            return None
        limited = limited_tasks(queue, self.known)
        if not limited:
            return ()
        now = time.monotonic()
        if now < self._seen.get(queue, 0.0) or (in_one and now >= self._looked.get(queue, 0.0) + LOOK_SECONDS):
            self._looked[queue] = now
            return None
        return limited

    def learn(self, queue: str, tasks: Collection[str | None], *, blocked: bool) -> None:
        """A claim has checked jobs of `queue`, which are of these tasks. `blocked`: some may not start."""
        if blocked or not {*limited_tasks(queue, self.known)}.isdisjoint(tasks):
            self._seen[queue] = time.monotonic() + SEEN_SECONDS
