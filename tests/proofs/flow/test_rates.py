"""How fast jobs start: no faster than their rate, soon after something has been freed, and fast with many keys."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import uniform
from statistics import median

import pytest
from django.db.models import Max, Min

from jobqueue.models import Job
from tests.marks import committed
from tests.patience import patient
from tests.proofs.flow.crowd import Crowd, add, add_each, left, percentile
from tests.proofs.flow.test_pause import registered
from tests.proofs.running import unended, wait_for
from tests.purge import wait_for_purge

pytestmark = [committed, pytest.mark.timeout(1800)]
OPTIONS = ("--processes", "2", "--concurrency", "8", "--lease", "60s")


def excess(instants, per_second, bucket):
    """By how many starts the worst window passes bucket + rate x t; below 0 if none does."""
    instants = sorted(instants)
    # Of the windows that end at a start the worst begins at one. starts - rate x t, as a running maximum.
    worst, lowest = float("-inf"), float("inf")
    for number, at in enumerate(instants):
        lowest = min(lowest, number - per_second * at)
        worst = max(worst, number + 1 - per_second * at - lowest)
    return worst - bucket


def test_starts_never_pass_the_rate(run_worker, jobs, observer, full, figure):
    """A rate of 20/s, and 8 processes that could start much more: starts as the observer sees them in any window."""
    total, workers = (1_200, 4) if full else (60, 2)
    crowd = Crowd(run_worker, workers, *OPTIONS)
    # Processes that start use up the cores, and a job would start long after its token was drawn.
    wait_for(lambda: registered() == 2 * workers, 60, lambda: unended(crowd.workers))
    add(jobs.paced, total, observer.address, "paced", 0.0)
    wait_for(lambda: not left(), 60 + total / jobs.PER_SECOND, lambda: unended(crowd.workers))
    claimed = [at / timedelta(seconds=1) for at in since_the_first()]
    by_claims, from_outside = (excess(found, jobs.PER_SECOND, jobs.PER_SECOND) for found in (claimed, observer.starts))
    starts = observer.of("paced").starts
    seconds = starts[-1] - starts[0]
    assert len(starts) == total
    # A claim reads the clock a moment before it draws the tokens.
    assert by_claims < 1
    # What a busy machine starts late is nearer to the next ones.
    assert from_outside < jobs.PER_SECOND * patient(0.02)
    # Nor are tokens lost: but for the first bucket, a token each 50 ms.
    assert seconds < patient((total - jobs.PER_SECOND) / jobs.PER_SECOND)
    figure("rate /s, bucket", f"{jobs.PER_SECOND}, {jobs.PER_SECOND}")
    figure("starts", total)
    figure("seconds", round(seconds, 1))
    figure("most starts above bucket + rate x t, seen from outside", max(0, round(from_outside, 1)))
    figure("the same by the claims' own instants", max(0, round(by_claims, 1)))


def since_the_first():
    """When each job was claimed, by the clock of the server, after the first."""
    found = sorted(Job.objects.values_list("last_started_at", flat=True))
    return [at - found[0] for at in found]


def per_second(run_worker, task, total, keys, workers, order):
    """How many of `total` jobs end in a second, from the first claim to the last end, by the clock of the server.

    All are there before a worker starts: one that takes jobs while others are added would be measured too fast.
    """
    Job.objects.all().delete()
    if order == "one key after the other":
        for number in range(keys):
            add(task, total // keys, number)
    else:
        for _ in range(total // keys):
            for number in range(keys):
                add(task, 1, number)
    crowd = Crowd(run_worker, workers, *OPTIONS)
    # Not counted, which would take a part of the machine's time.
    wait_for(lambda: not unfinished(), 600, lambda: unended(crowd.workers))
    assert [worker.stop() for worker in crowd.workers] == [0] * workers
    first, last = Job.objects.aggregate(a=Min("last_started_at"), b=Max("finished_at")).values()
    starts = since_the_first()
    # No job waits for a sweep because nobody has opened its gate.
    assert max(later - earlier for earlier, later in pairwise(starts)) < timedelta(seconds=patient(5))
    return total / ((last - first) / timedelta(seconds=1))


def unfinished():
    """Whether any job has not ended: two seeks."""
    mine = Job.objects.filter(queue="default")
    return mine.filter(status=Job.Status.READY).exists() or mine.filter(status=Job.Status.PROCESSING).exists()


@pytest.mark.parametrize(
    ("order", "least"),
    # Where the jobs of a key come one behind another, 19 of 20 are put behind a gate and opened again: two more writes
    # of each.
    [("keys take turns", 0.5), ("one key after the other", 0.25)],
)
def test_many_keys_with_a_limit_of_one_keep_a_part_of_the_speed_without_limits(
    run_worker, jobs, full, figure, order, least
):
    """Jobs of 1,000 keys, each with limit 1, and the same without limits, in turn: jobs per second."""
    total, keys, pairs = (20_000, 1_000, 3) if full else (200, 50, 1)
    found = [
        [
            per_second(run_worker, task, total, keys, 2 if full else 1, order)
            for task in (jobs.free_work, jobs.keyed_work)
        ]
        for _ in range(pairs)
    ]
    share = median(keyed / free for free, keyed in found)
    # The short form only shows that it runs: so few jobs say nothing about the share.
    assert share >= (least if full else 0.02), found
    figure("order of the jobs", order)
    figure("keys", keys)
    figure("without limits /s", round(median(free for free, _ in found)))
    figure("with a limit of 1 for each key /s", round(median(keyed for _, keyed in found)))
    figure("share", round(share, 2))


def processor_seconds():
    """How long the cores of this machine have been busy and idle, in ticks: proc(5)."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


def test_what_opens_again_starts_soon_even_under_a_backlog(run_worker, jobs, observer, full, figure):
    """From the end of a body to the start of the next one of its limit, while 32 threads work off a backlog."""
    total, workers, backlog = (400, 2, 20_000) if full else (30, 1, 300)
    # The purge of rows that earlier tests have deleted would take a part of the server's time.
    wait_for_purge()
    # Older, so they begin first; those behind the backlog wait for their slot, and not for it. The jobs of the backlog
    # are so long that the cores are not used up: the times would be those of the machine's scheduler. Their lengths
    # differ: equal ones would keep the threads of a process in step, and all but one of them busy for as long.
    add(jobs.single, total, observer.address, "single", 0.02)
    add_each(jobs.free, [(observer.address, "backlog", round(uniform(0.1, 0.3), 3)) for _ in range(backlog)])
    before = processor_seconds()
    crowd = Crowd(run_worker, workers, *OPTIONS)
    seen = observer.of("single")
    wait_for(lambda: len(seen.starts) == total, 600, lambda: unended(crowd.workers))
    under = left()
    busy, idle = (late - early for late, early in zip(processor_seconds(), before, strict=True))
    gaps = [begun - ended for begun, ended in zip(seen.starts[1:], seen.ends, strict=False)]
    half, most = percentile(gaps, 0.5), percentile(gaps, 0.99)
    assert half <= (0.1 if full else patient(0.1))
    assert most <= (0.3 if full else patient(0.3))
    assert under or not full, "the backlog was worked off before the end"
    figure("starts after an end", len(gaps))
    figure("p50 in ms", round(1000 * half))
    figure("p99 in ms", round(1000 * most))
    figure("jobs of the backlog that were left", under)
    figure("use of the cores in %", round(100 * busy / (busy + idle)))
