"""A busy queue that is paused, and one that is full."""

from __future__ import annotations

import json
import os
import time

import pytest
from django.db import connections

from jobqueue import enqueue, flow
from jobqueue.exceptions import QueueFull
from jobqueue.models import Job, Worker
from tests.marks import committed
from tests.patience import patient
from tests.proofs.flow.crowd import Crowd, add, left
from tests.proofs.running import unended, wait_for
from tests.servers import control
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(900)]


def registered():
    """How many child processes run, as their rows say."""
    return Worker.objects.filter(stopped_at__isnull=True).count()


def restart_server():
    """Restart the server if there is one of ours; whether there was."""
    server = None if VENDOR == "sqlite" else control.load().get(VENDOR)
    if server is None or not server.controllable:
        return False
    connections.close_all()
    server.restart()
    return True


def test_a_paused_queue_starts_nothing_later_than_a_second(run_worker, jobs, observer, full, figure):
    """8 processes and a backlog; pause(), then a restart of a worker and of the server: starts after the commit."""
    backlog, workers, rounds = (100_000, 4, 3) if full else (2_000, 2, 1)
    add(jobs.free, backlog, observer.address, "busy", 0.01)
    options = ("--processes", "2", "--concurrency", "2", "--lease", "60s")
    crowd = Crowd(run_worker, workers, *options)
    second = 1.0 if full else patient(0.2)
    lasts, after, restarted = [], 0, False
    for _ in range(rounds):
        seen = len(observer.starts)
        wait_for(lambda: len(observer.starts) > seen + 50, 60, lambda: unended(crowd.workers))  # noqa: B023
        flow.pause("default", reason="the proof")
        committed_at = time.monotonic()
        wait_for(lambda: time.monotonic() > committed_at + second, 30)  # noqa: B023
        lasts.append(max(observer.starts) - committed_at)
        ended = crowd.workers[0]
        assert ended.stop() == 0
        crowd.replace()
        # A worker that starts while there is no server ends with status 3.
        wait_for(lambda: registered() == 2 * workers, 60, lambda: unended(crowd.workers))
        restarted = restart_server()
        time.sleep(10 if full else 2)
        after += sum(at > committed_at + second for at in observer.starts)
        assert flow.resume("default")
    assert after == 0
    assert left(), "it was busy to the end"
    figure("pauses", rounds)
    figure("last start after the commit, at most ms", round(1000 * max(0.0, *lasts)))
    figure("starts later than 1 s", after)
    figure("restarted", "a worker and the server" if restarted else "a worker")


def produce(path, stop):
    """Add jobs as fast as it goes until `stop` exists, and write when each was added, and how many were refused."""
    added, refused = [], 0
    while not stop.exists():
        try:
            enqueue("full", 1)
            added.append(time.time())
        except QueueFull:
            if not refused:
                path.with_suffix(".refused").touch()
            refused += 1
            time.sleep(0.002)
    path.write_text(json.dumps([added, refused]))


def forked(work):
    """A process that does `work`; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def test_producers_pass_max_ready_by_no_more_than_they_add_in_a_second(settings, full, figure, tmp_path):
    """8 producers add as fast as they can to a queue with MAX_READY, of which jobs are taken meanwhile."""
    producers, most, seconds = (8, 2_000, 30) if full else (3, 50, 3)
    settings.JOBQUEUE = {"QUEUES": {"full": {"MAX_READY": most}}}
    rows = Job.objects.filter(queue="full", status=Job.Status.READY)
    connections.close_all()
    stop, paths = tmp_path / "stop", [tmp_path / f"producer-{number}" for number in range(producers)]
    pids = [forked(lambda path=path: produce(path, stop)) for path in paths]
    greatest, begun, was_full = 0, time.monotonic(), False
    try:
        # On a busy machine it takes longer than `seconds` until the queue is full.
        while (lasted := time.monotonic() - begun) < seconds or not was_full:
            assert lasted < patient(60), "no producer was refused"
            was_full = any(tmp_path.glob("*.refused"))
            greatest = max(greatest, rows.count())
            # A worker that is slower than the producers.
            Job.objects.filter(pk__in=list(rows.values_list("pk", flat=True)[:20])).update(status=Job.Status.DONE)
            time.sleep(0.05)
    finally:
        stop.touch()
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * producers
    found = [json.loads(path.read_text()) for path in paths]
    added, refused = sorted(at for one, _ in found for at in one), sum(count for _, count in found)
    # What they add within a second, which is how old a count may be; longer on a busy machine.
    within = 1.0 if full else patient(0.2)
    pace = max(sum(at <= other <= at + within for other in added) for at in added[:: max(1, len(added) // 200)])
    assert greatest >= most / 2
    assert greatest <= most + pace
    assert refused > 0
    figure("producers", producers)
    figure("MAX_READY", most)
    figure("most that were ready", greatest)
    figure("most that were added within 1 s", pace)
    figure("refused", refused)
