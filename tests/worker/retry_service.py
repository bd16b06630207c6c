"""Jobs that need a service which is down, by a clock in memory: what the budget of retries does to them.

`python -m tests.worker.retry_figures` prints what it does, for the tables of docs/explanation/retries.md.
"""

import heapq
import random
from collections import Counter
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

from jobqueue.worker.child.retry_budget import RetryBudget, RetryLimit
from jobqueue.worker.run.attempt import Ending, Outcome
from jobqueue.worker.shared.counters import RetryCounts, RetryMemory
from tests.clocks import Clock

DOWN = ConnectionRefusedError("refused")
#: jobs, and for how many seconds the service is down: the rows of the table of bursts
BURSTS = [(1000, 300), (3000, 120), (10_000, 1800), (50_000, 180)]


def workers(count=1, clock=None):
    """The budgets of so many processes of one worker, their counts, and their clock."""
    clock = clock or Clock()
    counts = [RetryCounts(RetryMemory()) for _ in range(count)]
    return [RetryBudget(one, counts, "w", clock=clock) for one in counts], counts, clock


def lease(attempt=1, *, task="app.pay", dependency=None, max_attempts=25, **more):
    values = {"queue": "q", "payload": {}, "locked_at": None, "expires_at": None, **more}
    values["options"] = None
    return SimpleNamespace(attempt=attempt, task=task, dependency=dependency, max_attempts=max_attempts, **values)


def ran(error=None, attempt=1, *, dependency="stripe", delay=5.0, **more):
    return Outcome(
        lease(attempt, dependency=dependency, **more),
        Ending.OK if error is None else Ending.FAILED,
        0.1,
        error=error,
        delay_seconds=None if error is None else delay,
        dependency=dependency,
    )


class Service:
    """Jobs that need a service run at the times of a clock, as workers with these budgets would run them.

    Their back-off is that of the settings, or of `fixed_seconds`, with a jitter of a fifth.
    """

    def __init__(self, budgets, clock, per_second=20.0, fixed_seconds=None):
        self.budgets, self.clock, self.per_second, self.fixed_seconds = budgets, clock, per_second, fixed_seconds
        self.waiting, self.number, self.looks = [], 0, 0
        self.retried_at = []

    def burst(self, jobs, seconds=0.0):
        """So many jobs fall due now, or evenly in so many seconds."""
        for number in range(jobs):
            heapq.heappush(self.waiting, (self.clock.now + seconds * number / jobs, number - jobs, 1))

    def run(self, seconds, *, down, first=True):
        """Let so much time pass; returns the first attempts and the retries that began in it."""
        end, firsts, retries = self.clock.now + seconds, 0, 0
        following = self.clock.now
        while True:
            due = min(following if first else end, self.waiting[0][0] if self.waiting else end)
            if due >= end:
                self.clock.now = end
                return firsts, retries
            self.clock.now, attempt = due, 1
            if first and due == following:
                following += 1 / self.per_second
            else:
                attempt = heapq.heappop(self.waiting)[2]
            if self.runs(attempt, down=down):
                firsts, retries = firsts + (attempt == 1), retries + (attempt > 1)

    def runs(self, attempt, *, down):
        """Claim a job, and run it if the budget lets it run; whether it ran."""
        self.number += 1
        budget, chance = self.budgets[self.number % len(self.budgets)], random.Random(self.number)
        outcome = ran(DOWN if chance.random() < down else None, attempt)
        held = budget.sift([outcome.lease]).waiting
        if held:
            self.looks += 1
            ((seconds, _),) = held
            self.wait(seconds, attempt)
            return False
        if attempt > 1:
            self.retried_at.append(self.clock.now)
        if outcome.error is not None:
            wait = self.fixed_seconds or min(3600, 5 * 2 ** (attempt - 1))
            outcome.delay_seconds = min(3600, wait * chance.uniform(0.8, 1.2))
        budget.ended([outcome])
        if outcome.error is not None:
            # The attempts of these jobs do not end, so that retries are as many as they can be.
            self.wait(outcome.delay_seconds, min(attempt + 1, 20))
        return True

    def wait(self, seconds, attempt):
        heapq.heappush(self.waiting, (self.clock.now + seconds, self.number, attempt))

    def until_done(self):
        """The service is back and no new jobs come: the seconds until the last waiting one has begun."""
        back = last = self.clock.now
        while self.waiting:
            self.clock.now, _, attempt = heapq.heappop(self.waiting)
            if self.runs(attempt, down=False):
                last = self.clock.now
        return last - back

    def back(self, *, first):
        """The service is back: how many jobs wait, when half of them and all have begun, and the most in a second."""
        waiting, now = len(self.waiting), self.clock.now
        self.retried_at.clear()
        self.run(900 if first else 1800, down=False, first=first)
        begun = [at - now for at in self.retried_at]
        assert len(begun) == waiting
        return waiting, _minutes(begun[waiting // 2 - 1]), _minutes(begun[-1]), max(Counter(map(int, begun)).values())


def _minutes(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@contextmanager
def _service(budget, fixed_seconds=None):
    """A service of four processes, with a budget or without one; the same each time."""
    before = random.getstate()
    random.seed(1)  # of the waits until the next look
    budgets, _, clock = workers(4)
    try:
        with nullcontext() if budget else patch.object(RetryLimit, "look", lambda *_: False):
            yield Service(budgets, clock, fixed_seconds=fixed_seconds)
    finally:
        random.setstate(before)


def outage(*, budget, fixed_seconds=None):
    """Twenty jobs per second begin, and the service is down for ten minutes: a row of the table, and what follows."""
    with _service(budget, fixed_seconds) as service:
        before = service.run(540, down=True)
        last = service.run(60, down=True)
        waits = f"{fixed_seconds} s each time" if fixed_seconds else "default back-off"
        row = f"| {waits}, {'budget of 20 %' if budget else 'no budget'} | {before[0] + last[0]:,} "
        row += f"| {before[1] + last[1]:,} | {last[1]:,} | {100 * last[1] / sum(last):.0f} % |"
        after = "{:,} jobs wait; half of them have begun {} later, all {} later, at most {} in a second"
        return row, f"{sum(last) / 60:.0f} calls per second. " + after.format(*service.back(first=True))


def burst(jobs, seconds, *, budget):
    """So many jobs begin within a minute, no others follow, and the service is down: a row of the table, and looks."""
    with _service(budget) as service:
        service.burst(jobs, 60)
        before = service.run(seconds - 30, down=True, first=False)
        last = service.run(30, down=True, first=False)
        looks = service.looks
        _, half, end, most = service.back(first=False)
    which = "20 % |" if budget else "no |"
    what = "" if budget else f"{jobs:,}, {seconds // 60} minutes "
    return f"| {what}| {which} {sum(before) + sum(last):,} | {last[1] / 30:.1f} | {half}, {end} | {most} |", looks
