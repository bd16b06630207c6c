"""Limits hold while processes are killed and frozen, and while the server stands still."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from jobqueue.models import Job
from tests.marks import committed
from tests.patience import patient
from tests.proofs.flow.crowd import Crowd, add, left, members, most_leases
from tests.proofs.running import unended, wait_for
from tests.servers import control
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(1800), pytest.mark.usefixtures("audited")]
KEYS = 20


def fill(jobs, observer, total, seconds):
    """Jobs of one limit, of the limits of twenty keys, and as many that have none."""
    for _ in range(total // 60):
        add(jobs.limited, 20, observer.address, "task", seconds)
        for number in range(KEYS):
            add(jobs.keyed, 1, observer.address, f"key-{number}", seconds)
        add(jobs.free, 20, observer.address, "free", seconds)


def check(jobs, observer, figure):
    """No more leases and no more bodies than the limits say; and that it is not for want of trying."""
    bodies, leases = dict(observer.most), most_leases()
    allowed = {"task": jobs.LIMIT} | {f"key-{number}": 1 for number in range(KEYS)}
    assert {name: most for name, most in leases.items() if most > allowed.get(name, 10**6)} == {}
    assert {name: most for name, most in bodies.items() if most > allowed.get(name, 10**6)} == {}
    assert bodies["task"] == jobs.LIMIT
    keys = max(most for name, most in bodies.items() if name.startswith("key-"))
    figure("limit of the task / most leases / most bodies", f"{jobs.LIMIT} / {leases['task']} / {bodies['task']}")
    figure(
        "limit of each key / most leases / most bodies", f"1 / {max(leases[f'key-{n}'] for n in range(KEYS))} / {keys}"
    )
    figure("most bodies without a limit", bodies["free"])


def test_limits_hold_while_processes_are_killed(run_worker, jobs, observer, full, figure):
    """8 processes, and kill -9 of any process of any worker: supervisor, monitor, child or log writer."""
    total, workers = (6_000, 4) if full else (240, 2)
    fill(jobs, observer, total, 0.05)
    random.seed(total)
    crowd = Crowd(run_worker, workers, "--processes", "2", "--concurrency", "4", "--lease", "10s", "--heartbeat", "1s")
    while seen := left():
        crowd.kill_one()
        # Where a second is too short for a new process to get anything done, the kills would go on for ever.
        wait_for(lambda: left() <= max(0, seen - 20), 90, lambda: unended(crowd.workers))
    assert Job.objects.filter(status=Job.Status.DONE).count() == total
    check(jobs, observer, figure)
    figure("jobs", total)
    figure("kill -9", crowd.kills)
    figure("starts seen from outside", len(observer.starts))


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server to stop")
def test_limits_hold_while_the_server_stands_still(run_worker, jobs, observer, full, figure):
    """SIGSTOP of the database server in the middle of the work, for much longer than a lease, and SIGCONT."""
    server = control.load().get(VENDOR)
    if server is None or not server.controllable:
        pytest.skip("the server was given by its URL: not ours to stop")
    total, workers, seconds = (3_000, 4, 60) if full else (240, 2, 8)
    fill(jobs, observer, total, 0.05)
    options = ("--processes", "2", "--concurrency", "4", "--lease", "30s" if full else "5s", "--heartbeat", "1s")
    crowd = Crowd(run_worker, workers, *options)
    wait_for(lambda: left() < total * 2 / 3, 90, lambda: unended(crowd.workers))
    server.pause()
    try:
        time.sleep(seconds)
        begun = len(observer.starts)
    finally:
        server.resume()

    def all_ended():
        crowd.replace()
        return not left()

    wait_for(all_ended, 300, lambda: unended(crowd.workers))
    assert Job.objects.filter(status=Job.Status.DONE).count() == total
    assert begun < total
    check(jobs, observer, figure)
    figure("jobs", total)
    figure("seconds without an answer", seconds)


def test_a_frozen_child_is_killed_before_its_slot_is_given_away(run_worker, jobs, observer, full, figure):
    """A child that runs a body is frozen by SIGSTOP; its monitor kills it, and only then another body begins."""
    rounds = 10 if full else 1
    options = ("--processes", "2", "--concurrency", "2", "--lease", "5s", "--heartbeat", "0.5s")
    workers = [run_worker(*options) for _ in range(4 if full else 2)]
    gaps = []
    for number in range(1, rounds + 1):
        name = f"body-{number}"
        add(jobs.single, 2, observer.address, name, 1.5)
        pids = wait_for(lambda: observer.pids, 60, lambda: unended(workers))
        (victim,) = pids
        os.kill(victim, signal.SIGSTOP)
        wait_for(lambda: not left(), 120, lambda: unended(workers))
        seen = observer.of(name)
        assert seen.most == 1, "never two bodies"
        gaps += [begun - ended for begun, ended in zip(sorted(seen.starts)[1:], sorted(seen.ends), strict=False)]
    assert max(most_leases().values()) == 1
    killed = sum("it is killed before its slots are free" in worker.output() for worker in workers)
    assert killed
    assert min(gaps) > 0
    figure("children frozen", rounds)
    figure("most bodies at once", 1)
    figure("shortest time between two bodies in ms", round(1000 * min(gaps)))


@pytest.mark.parametrize("how", ["asks", "does not ask"])
def test_a_whole_tree_that_is_frozen_past_its_lease(run_worker, jobs, observer, full, figure, how):
    """All processes of a worker are frozen past the lease of the body that they run, and go on."""
    task = jobs.stops_when_asked if how == "asks" else jobs.single
    heartbeat = 1.0
    options = ("--lease", "4s", "--heartbeat", f"{heartbeat}s", "--concurrency", "2")
    add(task, 1, observer.address, "body", 60 if how == "asks" else 12)
    frozen = run_worker(*options)
    wait_for(lambda: observer.running, 60, lambda: unended([frozen]))
    frozen.freeze()
    (job,) = Job.objects.all()
    other = run_worker(*options)
    wait_for(lambda: observer.of("body").running == 2, 90, lambda: unended([other]))
    again = Job.objects.get()
    assert again.fence == job.fence + 1
    outlived = observer.of("body").most - 1
    frozen.thaw()
    continued = time.monotonic()
    if how == "asks":
        wait_for(lambda: observer.of("body").ends, patient(heartbeat), lambda: unended([frozen]))
        stopped = observer.of("body").ends[0] - continued
        assert stopped < patient(heartbeat)
        figure("heartbeat in s / stopped after SIGCONT in s", f"{heartbeat} / {stopped:.2f}")
    wait_for(lambda: "was refused because its lease had ended" in frozen.output(), 60, lambda: unended([frozen]))
    assert members(other)
    other.kill_all()
    assert max(most_leases().values()) == 1
    figure("its body", how + " whether to stop")
    figure("bodies that outlived their lease", outlived)
    figure("most leases at once", 1)
    figure("outcomes of such bodies that were written", 0)
