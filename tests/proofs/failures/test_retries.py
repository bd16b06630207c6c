"""Retries in two layers are multiplied and reported, and those of a service that is down have a budget."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from jobqueue.models import Job
from jobqueue.transitions import retry
from tests.failures.shop import Shop
from tests.marks import committed
from tests.patience import patient
from tests.proofs.customers import customers
from tests.proofs.running import unended, wait_for
from tests.proofs.test_probes import free_port, get

pytestmark = [committed, pytest.mark.timeout(900)]

SHARE = 0.2
PER_SECOND = 20


@pytest.fixture
def shop():
    made = []

    def make(status=200):
        made.append(Shop(status))
        return made[-1]

    yield make
    for one in made:
        one.switch_off()


def runs(worker):
    """First attempts and retries so far, as the jobs have written it themselves."""
    found = Counter(line[3] == "1" for line in worker.lines("run"))
    return found[True], found[False]


def share_of_retries(worker, seconds):
    """(first attempts, retries, share of the retries) among the runs of the next seconds."""
    before = runs(worker)
    time.sleep(seconds)
    first, retries = (now - then for now, then in zip(runs(worker), before, strict=True))
    return first, retries, retries / max(1, first + retries)


def share_once(worker, full, seconds, reached):
    """share_of_retries() of so many seconds; in the short form of the first ones of which reached(share) is true.

    Retries come late on a busy machine, and the more of them the longer the service is away.
    """
    found = share_of_retries(worker, seconds)
    until = time.monotonic() + patient(20)
    while not full and not reached(found[2]) and time.monotonic() < until:
        found = share_of_retries(worker, seconds)
    return found


def left():
    return Job.objects.exclude(status=Job.Status.DONE)


def all_retried():
    """Let those that wait run now; whether none is left."""
    for job_id in left().values_list("pk", flat=True):
        retry(job_id)
    return not left().exists()


OPTIONS = ("--lease", "60s")


def test_three_tries_in_each_of_three_attempts_are_reported_as_nine_calls(run_worker, jobs, shop, figure):
    """A job of 3 attempts with urllib3's Retry(total=2), and a server that answers 503: the calls that arrive there."""
    port, service = free_port(), shop(503)
    service.switch_on()
    job_id = int(jobs.tries_three_times.enqueue(service.url).id)
    worker = run_worker("--probe-port", str(port), *OPTIONS)
    wait_for(lambda: Job.objects.filter(pk=job_id, status=Job.Status.FAILED).exists(), 30, lambda: unended([worker]))
    name = jobs.tries_three_times.module_path
    gauge = f'jobqueue_worker_retry_amplification{{dependency="",task="{name}"}} 9.0'
    wait_for(lambda: gauge in get(port, "/metrics")[1], 10, lambda: get(port, "/metrics")[1])
    assert service.requests == 9
    words = f"one attempt of {name} made 3 calls (urllib3), so its 3 attempts make up to 9."
    wait_for(lambda: words in worker.output(), 10, "the line of the log")
    assert worker.stop() == 0
    figure("calls that the server got", service.requests)
    figure("jobqueue_worker_retry_amplification", 9)
    figure("line of the log", words)


def test_while_a_service_is_down_retries_are_held_at_their_share(run_worker, jobs, shop, full, figure):
    """20 new jobs per second, back-off 1 s, their service switched off and on: the share of retries among all runs."""
    service = shop()
    service.switch_on()
    worker = run_worker(*OPTIONS, "--processes", "2")
    with customers(jobs.buys, service.url, PER_SECOND):
        wait_for(lambda: runs(worker)[0] > PER_SECOND, 30, "the first jobs")
        service.switch_off()
        # Shares are means of the last minute.
        time.sleep(60 if full else 2)
        first, retries, share = share_once(worker, full, 60 if full else 3, bool)
        service.switch_on()
    waiting = left().count()
    assert first >= PER_SECOND * (40 if full else 1)
    assert 0 < share <= SHARE * (1.05 if full else 1.5), (first, retries)
    wait_for(lambda: left().count() < waiting, 30, "the first retry that succeeds")
    # The others wait for their turn. An operator need not.
    wait_for(all_retried, 120, lambda: unended([worker]))
    assert worker.stop() == 0
    assert "their retries wait for their turn" in worker.output()
    figure("first attempts", first)
    figure("retries", retries)
    figure("share", f"{share:.1%}")
    figure("RETRY_SHARE", f"{SHARE:.0%}")
    figure("waiting when it was on again", waiting)
    figure("lost", 0)


def test_the_same_jobs_without_a_dependency_are_mostly_retries(run_worker, jobs, shop, full, figure):
    """The same jobs, whose task names no dependency: the share of retries is what the budget prevents."""
    service = shop()
    worker = run_worker(*OPTIONS, "--processes", "2")
    with customers(jobs.buys_without_a_budget, service.url, PER_SECOND):
        wait_for(lambda: runs(worker)[0] > PER_SECOND, 30, "the first jobs")
        time.sleep(10 if full else 1)
        first, retries, share = share_once(worker, full, 10 if full else 2, lambda share: share > 2 * SHARE)
        service.switch_on()
    wait_for(lambda: not left().exists(), 120, lambda: unended([worker]))
    assert worker.stop() == 0
    assert share > 2 * SHARE
    figure("first attempts", first)
    figure("retries", retries)
    figure("share", f"{share:.1%}")
