"""Processes are killed and frozen while they work; the database's own records say what came of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue.models import Job
from jobqueue.producer.enqueueing import add_many, new_job
from tests.app import tasks
from tests.factories import seconds_from_now
from tests.marks import committed
from tests.patience import patient
from tests.proofs import audit
from tests.proofs.running import unended, wait_for
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def audited():
    audit.start()
    yield
    audit.stop()


def fill(count, seconds, task=tasks.work):
    job = new_job("default", {"args": [seconds], "kwargs": {}})
    add_many([replace(job, task=task.module_path)] * count)


def left():
    return Job.objects.exclude(status__in=(2, 3, 4)).count()


REFUSED = "was refused because its lease had ended"


def frozen_past_its_leases(worker):
    """Freeze a whole worker until others have all its jobs, and let it go on; False if the moment was a bad one.

    It is one where it held nothing, or was in the middle of a transaction: its rows stay locked, and nobody else can
    have them before it goes on.
    """
    group = worker.process.pid
    os.killpg(group, signal.SIGSTOP)
    try:
        # What was on its way to the server has arrived there.
        time.sleep(0.5)
        held = {job.pk: job.fence for job in Job.objects.filter(status=1, locked_by__contains=f":{group}:")}
        if not held or not can_be_locked(held):
            return False

        def gone():
            return not [pk for pk, fence in still_held() if held[pk] == fence]

        def still_held():
            return Job.objects.filter(status=1, pk__in=held).values_list("pk", "fence")

        with suppress(AssertionError):
            wait_for(gone, 20)
        assert gone() or not can_be_locked(held), f"nobody took {held}: {unended([])}"
        return gone()
    finally:
        os.killpg(group, signal.SIGCONT)


def can_be_locked(ids):
    """Whether no transaction has written any of these jobs and not ended."""
    if VENDOR == "sqlite":
        return nobody_writes()
    with transaction.atomic():
        free = Job.objects.select_for_update(skip_locked=True).filter(pk__in=ids).order_by("pk")
        return len(free) == len(ids)


def nobody_writes():
    """Whether the lock of SQLite's file can be had within a second."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 1000")
        with transaction.atomic():
            return True
    except OperationalError:
        return False
    finally:
        # The setting ends with the session.
        connection.close()


def test_four_worker_processes_lose_nothing_and_finish_nothing_twice_under_kill_9_every_second(
    run_worker, full, figure
):
    """4 worker processes, kill -9 every second: every job finished, none finished twice, stale acks refused."""
    total = 10_000 if full else 1_500
    fill(total, 0.1)
    random.seed(total)
    options = ("--processes", "2", "--concurrency", "4", "--lease", "4s", "--heartbeat", "1s", "-v", "1")
    workers = [run_worker(*options), run_worker(*options)]
    kills = pauses = whole = 0

    def outputs():
        return "\n".join(path.read_text(errors="replace") for path in workers[0].log.parents[1].glob("worker-*/log"))

    while seen := left():
        time.sleep(1.0)
        # Where a second is too short for a new process to get anything done, the kills would go on for ever.
        wait_for(lambda: left() <= max(0, seen - 20), 60, lambda: unended(workers))
        index = random.randrange(2)
        victims = workers[index].children()
        if not victims:
            continue
        what = kills % 5
        if what == 3 and REFUSED not in outputs():
            # Longer than the lease: others finish its jobs, and what it says afterwards must be refused.
            if not frozen_past_its_leases(workers[index]):
                continue
            pauses += 1
            with suppress(AssertionError):
                # Before it is killed. Where it was about to begin all that it held, there is nothing to refuse.
                wait_for(lambda: REFUSED in outputs(), 5)
        elif what == 4:
            workers[index].kill_all()
            workers[index] = run_worker(*options)
            whole += 1
        else:
            os.kill(random.choice(victims), signal.SIGKILL)
        kills += 1
    for worker in workers:
        worker.stop()
    edges = Counter((old, new) for _, old, new, _ in audit.edges())
    assert audit.violations() == []
    assert edges[1, 2] == total == Job.objects.filter(status=Job.Status.DONE).count()
    assert Job.objects.filter(attempts__gte=25).count() == 0
    refused = outputs().count(REFUSED)
    figure("jobs", total)
    figure("kill -9 of a child or monitor", kills - pauses - whole)
    figure("kill -9 of a whole worker", whole)
    figure("whole worker frozen past its lease", pauses)
    figure("finished exactly once", edges[1, 2])
    figure("given back or charged and run again", edges[1, 0])
    figure("stale answers refused", refused)
    if pauses:
        assert refused > 0


def test_a_job_that_kills_its_process_fails_after_exactly_max_attempts_and_bystanders_are_not_charged(
    run_worker, figure
):
    """os._exit in a job: FAILED after exactly max_attempts starts; jobs claimed with it and not started not charged."""
    die = int(tasks.die.enqueue().id)
    bystanders = [int(tasks.add.enqueue(n, 1).id) for n in range(40)]
    worker = run_worker("--concurrency", "1", "--batch-size", "50", "--lease", "60s", "--heartbeat", "5s")
    wait_for(lambda: not left(), 60, "the end of all jobs")
    assert worker.stop() == 0
    dead = Job.objects.get(pk=die)
    starts = [line for line in worker.lines("start") if line[2] == str(die)]
    assert (dead.status, dead.attempts, dead.crashes, dead.cause) == (Job.Status.FAILED, 3, 3, "lost")
    assert len(starts) == 3
    charged = Job.objects.filter(pk__in=bystanders).exclude(attempts=0).count()
    assert Job.objects.filter(pk__in=bystanders, status=Job.Status.DONE).count() == len(bystanders)
    assert charged == 0
    assert audit.violations() == []
    figure("starts of the job with max_attempts = 3", len(starts))
    figure("bystanders charged", charged)


def test_a_job_that_always_fails_starts_exactly_max_attempts_times(run_worker, figure):
    """max_attempts = 3 runs exactly 3 times."""
    boom = int(tasks.boom.enqueue().id)
    worker = run_worker()
    wait_for(lambda: not left(), 60, "the end of the job")
    worker.stop()
    job = Job.objects.get(pk=boom)
    assert (job.status, job.attempts, job.crashes) == (Job.Status.FAILED, 3, 0)
    assert len(worker.lines("start")) == 3
    figure("starts", 3)


def test_once_starts_one_job_even_if_that_job_kills_its_process(run_worker):
    """--once: a replacement process does not start another job."""
    die, other = int(tasks.die.enqueue().id), int(tasks.add.enqueue(1, 1).id)
    worker = run_worker("--once")
    assert worker.process.wait(patient(60)) == 0
    assert Job.objects.get(pk=die).attempts == 1
    assert Job.objects.get(pk=other).status == Job.Status.READY


def test_a_queues_longer_lease_is_kept_by_the_heartbeats(run_worker, tmp_path):
    """JOBQUEUE["QUEUES"][name]["LEASE_SECONDS"] holds from the claim through every renewal."""
    gate = tmp_path / "gate"
    slow = int(tasks.gated.using(queue_name="slow").enqueue(str(gate)).id)
    worker = run_worker("--lease", "60s", "--heartbeat", "0.5s")
    wait_for(lambda: worker.lines("start"), 30, "the job's start")
    until = Job.objects.get(pk=slow).lock_until
    for _ in range(2):
        before = until
        until = wait_for(lambda: ends_after(slow, before), 30, "a renewal")  # noqa: B023  at once
        assert 300 < seconds_from_now(until) <= 600
    gate.touch()
    assert worker.stop() == 0


def ends_after(job_id, instant):
    """The end of a job's lease, if it is later than that."""
    until = Job.objects.get(pk=job_id).lock_until
    return until if until > instant else None
