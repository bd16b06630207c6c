"""Jobs of one ordering key run one after another in the order of the commits, whatever becomes of the workers."""

import os
import random
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

import pytest
from django.db import connections
from django.db.models import Max

from jobqueue import enqueue_many
from jobqueue.models import Job, LaneEntry
from jobqueue.ordering.lanes import lane_of
from tests.app import tasks
from tests.marks import committed
from tests.patience import patient
from tests.proofs.outbox.publishers import Publishers
from tests.proofs.running import wait_for

QUEUE = "webhooks"
pytestmark = [committed, pytest.mark.timeout(1200)]


class Enqueuers(Publishers):
    """The same with jobs for events."""

    def send(self, key, number):
        return int(tasks.ordered.using(ordering_key=key).enqueue(number).id)


class Trouble(threading.Thread):
    """Kills whole workers, and freezes others beyond their lease; each time others go on."""

    def __init__(self, start, count, pause_seconds, written):
        super().__init__(daemon=True)
        self._start_worker, self._pause_seconds, self._written = start, pause_seconds, written
        self.workers = [start() for _ in range(count)]
        self.kills = self.pauses = 0
        self._over = threading.Event()

    def run(self):
        while not self._over.wait(random.uniform(0.3, 1.5)):
            self._let_them_work()
            place = random.randrange(len(self.workers))
            if random.random() < 0.6:
                self.workers[place].kill_all()
                self.workers[place] = self._start_worker()
                self.kills += 1
            else:
                self._signal(place, signal.SIGSTOP)
                self._over.wait(self._pause_seconds)
                self._signal(place, signal.SIGCONT)
                self.pauses += 1

    def _let_them_work(self):
        """Where a second is too short for a new worker to get anything done, the trouble would go on for ever."""
        seen = self._written()
        try:
            while self._written() == seen and unended().exists() and not self._over.wait(0.05):
                pass
        finally:
            connections.close_all()

    def end(self):
        self._over.set()
        self.join(patient(60))
        assert not self.is_alive()

    def _signal(self, place, number):
        with suppress(ProcessLookupError):
            os.killpg(self.workers[place].process.pid, number)


def check(enqueuers, lines):
    """Every job ran, none before the one before it had ended; how many runs were repeated."""
    begun, ended = {}, {}
    for position, (event, _pid, job_id, *_rest) in enumerate(lines):
        (begun if event == "begins" else ended).setdefault(int(job_id), position)
    for key, turns in enqueuers.committed.items():
        expected = [turns[turn] for turn in sorted(turns)]
        assert sorted(expected, key=begun.__getitem__) == expected, f"the order of {key} is broken"
        for before, after in pairwise(expected):
            assert ended[before] < begun[after], f"{after} began before {before} had ended"
    ran = {int(line[5]) for line in lines}
    assert not ran & enqueuers.undone, "a job of a rolled back transaction ran"
    return sum(line[0] == "begins" for line in lines) - len(begun)


def test_jobs_of_a_key_run_in_order_through_kills_and_pauses(run_worker, tmp_path, full, figure):
    """Workers under kill -9 and SIGSTOP: jobs of a key run one after another, in the order of the commits."""
    total, keys, count = (20_000, 200, 3) if full else (200, 10, 2)
    random.seed(total)
    enqueuers = Enqueuers(total, [f"key-{n}" for n in range(keys)])
    options = ("--lease", "2s", "--heartbeat", "0.4s", "--concurrency", "4")
    evidence = tmp_path / "order"

    def written():
        return evidence.stat().st_size if evidence.exists() else 0

    trouble = Trouble(lambda: run_worker(*options, JOBQUEUE_TEST_LOG=evidence), count, 3.0, written)
    begun = time.monotonic()
    enqueuers.start()
    wait_for(lambda: lines_of(evidence), 60, "the first job")
    trouble.start()
    enqueuers.join(900)
    wait_for(lambda: trouble.kills >= 2 and trouble.pauses >= 1, 60, "trouble")
    wait_for(lambda: not unended().exists(), 900, "the last job")
    seconds = time.monotonic() - begun
    trouble.end()
    repeated = check(enqueuers, lines_of(evidence))
    # Taken out after the commit that ended the job; by the sweep where a kill came between the two.
    wait_for(lambda: not LaneEntry.objects.exists(), 60, "the last lane entry to be taken out")
    assert Job.objects.count() == sum(map(len, enqueuers.committed.values()))
    figure("workers", count)
    figure("jobs on keys", f"{total} on {keys}")
    figure("kill -9 / pauses beyond the lease", f"{trouble.kills} / {trouble.pauses}")
    figure("runs repeated", repeated)
    figure("seconds", round(seconds, 1))


def unended():
    return Job.objects.exclude(status=Job.Status.DONE)


def lines_of(evidence):
    """What all workers wrote, in the order of the writes: one file."""
    lines = evidence.read_text().splitlines() if evidence.exists() else []
    return [line.split() for line in lines if line.startswith(("begins", "ends"))]


def test_a_hot_key_does_not_slow_the_others(run_worker, full, figure):
    """One key with many waiting jobs: the jobs of other keys are drained as fast as without it (medians)."""
    hot, others, keys, rounds = (100_000, 10_000, 500, 5) if full else (2_000, 200, 20, 1)
    seconds = defaultdict(list)
    for _ in range(rounds):
        for name, waiting in (("without", 0), ("with", hot)):
            Job.objects.all().delete()
            LaneEntry.objects.all().delete()
            hot_ids = enqueue_many(QUEUE, numbered(waiting), ordering_key="hot")
            for key in range(keys):
                enqueue_many(QUEUE, numbered(others // keys), ordering_key=f"key-{key}")
            seconds[name].append(drain_others(run_worker, lane_of(QUEUE, b"hot")))
            if waiting:
                assert last_end(hot_ids[-1:]) > last_end(), "the hot key was drained before the others"
    rates = {name: others / median(found) for name, found in seconds.items()}
    # Of neighbours in time: what else the machine does changes from one to the next round.
    ratio = median(without / with_it for without, with_it in zip(seconds["without"], seconds["with"], strict=True))
    figure("hot key / others", f"{hot} jobs / {others} on {keys} keys")
    figure("others per second without / with it", f"{rates['without']:.0f} / {rates['with']:.0f}")
    figure("ratio", round(ratio, 2))
    if full:
        assert ratio >= 0.8


def last_end(ids=None):
    """When the last of these jobs, or of those without the hot key, has ended; far away if it has not."""
    jobs = Job.objects.filter(pk__in=ids) if ids else Job.objects.exclude(ordering_key=b"hot")
    if jobs.exclude(status=Job.Status.DONE).exists():
        return datetime.max.replace(tzinfo=UTC)
    return jobs.aggregate(last=Max("finished_at"))["last"]


def numbered(count):
    return [{"n": n} for n in range(count)]


def drain_others(run_worker, hot_lane):
    """Seconds from the first job that ended to the last one of another key."""
    # By the index: to read the entries of the hot key at each look would slow the worker down.
    sides = LaneEntry.objects.filter(lane__lt=hot_lane), LaneEntry.objects.filter(lane__gt=hot_lane)
    before = sum(side.count() for side in sides)
    worker = run_worker("--concurrency", "4")
    wait_for(lambda: sum(side.count() for side in sides) < before, 60, "the first job")
    begun = time.monotonic()
    wait_for(lambda: not any(side.exists() for side in sides), 600, "the last job of the other keys")
    seconds = time.monotonic() - begun
    worker.kill_all()
    return seconds
