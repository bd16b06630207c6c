"""The sums of job_stat are those of observers outside of the product, and a killed process loses one write at most."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest

from jobqueue.db.background_writer import FLUSH_SECONDS
from jobqueue.models import JobAttempt, JobStat
from jobqueue.models.stat import SPANS
from tests.app.tasks import observed_by_process
from tests.marks import committed
from tests.observer import Observer
from tests.proofs import audit
from tests.proofs.flow.crowd import Crowd, add_each, left, members
from tests.proofs.running import unended, wait_for
from tests.stats.helpers import roll_up, sums

pytestmark = [committed, pytest.mark.timeout(1800)]
OPTIONS = ("--processes", "2", "--concurrency", "4", "--lease", "6s", "--heartbeat", "1s")
#: the longest time between two writes, and a moment for the last one to be made
WRITE_SECONDS = 1.2 * FLUSH_SECONDS + 2
#: one job of so many fails in each attempt
FAILS = 20


@pytest.fixture
def observer(tmp_path):
    audit.start()
    made = Observer(tmp_path)
    yield made
    made.end()
    audit.stop()


def changed():
    """By (old, new) status how many changes the triggers have recorded."""
    return Counter((old, new) for _, old, new, _ in audit.edges())


def add(observer, jobs):
    """Jobs of which one of FAILS fails once and for all."""
    fails = observed_by_process.using(max_attempts=2, backoff=0)
    add_each(observed_by_process, ((observer.address, False) for _ in range(jobs)))
    add_each(fails, ((observer.address, True) for _ in range(jobs // FAILS)))


def ended(observer):
    return sum(len(observer.of(name).ends) for name in list(observer._seen))


def test_the_sums_are_those_of_observers(run_worker, observer, full, figure):
    """Triggers count each change of a status, and a socket each body that ends; workers stop by SIGTERM."""
    jobs = 40_000 if full else 600
    add(observer, jobs)
    workers = [run_worker(*OPTIONS) for _ in range(2)]
    wait_for(lambda: left() == 0, 900, lambda: unended(workers))
    assert [worker.stop() for worker in workers] == [0, 0]
    failing = jobs // FAILS
    done, retried, dead, canceled, lost = sums()
    seen = changed()
    assert (done, dead, canceled, lost) == (seen[1, 2], seen[1, 3], 0, 0) == (jobs, failing, 0, 0)
    # A job that is given back unstarted is READY again, too: attempts tell how often one has failed.
    assert retried + dead == JobAttempt.objects.count() == 2 * failing
    assert ended(observer) == done + retried + dead
    stats = JobStat.objects.filter(span__in=SPANS)
    runs = stats.values_list("runs", "run_times")
    assert sum(row for row, _ in runs) == sum(sum(times.values()) for _, times in runs) == done + retried + dead
    rows = stats.count()
    figure("runs that a socket saw end / in job_stat", f"{ended(observer):,} / {done + retried + dead:,}")
    figure("DONE, FAILED by triggers / in job_stat", f"{seen[1, 2]:,}, {seen[1, 3]:,} / {done:,}, {dead:,}")
    figure("failed attempts / retried and dead in job_stat", f"{JobAttempt.objects.count():,} / {retried + dead:,}")
    figure("rows", rows)


def test_a_killed_process_loses_less_than_one_write(run_worker, observer, full, figure):
    """SIGKILL to any process every two seconds: what is missing, the killed ones had ended since their last write."""
    kills, pause = (30, 2.0) if full else (5, 0.6)
    started = []

    def start(*options):
        started.append(run_worker(*options))
        return started[-1]

    crowd = Crowd(start, 3, *OPTIONS)
    possible = 0
    for _ in range(kills):
        while left() < 1500:
            add(observer, 1000)
        time.sleep(pause)
        victims = [pid for worker in crowd.workers for pid in members(worker)]
        victim, now = random.choice(victims), time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            crowd.kills += 1
        recent = sum(at > now - WRITE_SECONDS for at in list(observer.of(str(victim)).ends))
        # A monitor counts the jobs that it has settled for dead children.
        possible += max(recent, 2 * 4)
        crowd.replace()
    wait_for(lambda: left() == 0, 900, lambda: unended(crowd.workers))
    crowd.replace()
    # Children of killed supervisors leave by themselves.
    replaced = [worker for worker in started if worker not in crowd.workers]
    wait_for(lambda: not any(map(members, replaced)), 120, "the end of children whose supervisor was killed")
    # SIGTERM would end one that has just been started.
    wait_for(lambda: all(len(worker.children()) > 2 for worker in crowd.workers), 60, "the start of the workers")
    assert [worker.stop() for worker in crowd.workers] == [0, 0, 0]
    done, retried, dead, canceled, _ = sums()
    seen = changed()
    assert done <= seen[1, 2]
    assert dead <= seen[1, 3]
    assert retried + dead <= JobAttempt.objects.count()
    missing = seen[1, 2] - done + seen[1, 3] - dead
    assert missing <= possible
    before = sums()
    JobStat.objects.exclude(span=JobStat.Span.TOTAL).update(begins_at="2001-01-01T00:00:00Z")
    roll_up(using="default")
    assert sums() == before
    assert canceled == 0
    figure("kill -9", crowd.kills)
    figure("ended by triggers / in job_stat", f"{seen[1, 2] + seen[1, 3]:,} / {done + dead:,}")
    figure(
        "missing, all kills together / what the killed ones had ended since their last write at most",
        f"{missing} / {possible}",
    )
    figure("counted twice", 0)
