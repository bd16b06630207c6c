"""Limits, pauses, breakers and full queues, as real processes keep them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

import pytest
from django.db import connections, transaction

from jobqueue import enqueue, flow
from jobqueue.exceptions import QueueFull
from jobqueue.models import Job
from tests.app import tasks
from tests.app.models import Ticket
from tests.factories import enqueue_times, now
from tests.failures.shop import Shop
from tests.marks import committed, finding
from tests.observer import Observer
from tests.patience import patient, wait_until
from tests.process.harness import LONG

pytestmark = committed
THRESHOLD = 5


@pytest.fixture
def observer(tmp_path):
    """Sees which bodies run."""
    made = Observer(tmp_path)
    yield made
    made.end()


@pytest.fixture
def shop():
    """A service that is up."""
    made = Shop()
    made.switch_on()
    yield made
    made.switch_off()


def done():
    return Job.objects.filter(status=Job.Status.DONE).count()


def run_all_of_another_queue(count):
    """Run as many jobs of another queue: a worker claims them after those of a queue that is not paused."""
    enqueue_times(count, tasks.add.using(queue_name="other", priority=-1), 1, 1)
    others = Job.objects.filter(queue="other").exclude(status=Job.Status.DONE)
    wait_until(lambda: not others.exists(), what="the jobs of another queue")


def test_no_more_bodies_run_than_a_limit_allows_while_processes_are_killed(worker, observer):
    flow.set_limit("default", task=tasks.observed, concurrency=2)
    enqueue_times(40, tasks.observed, observer.address, "one", 0.05)
    group = worker("--processes", 3, "--concurrency", 2)
    for kills in range(1, 4):
        wait_until(lambda: done() >= 8 * kills, what="eight more")  # noqa: B023  at once
        # A child, the monitor or the writer of the log.
        os.kill(random.choice([pid for pid in group.members() if pid != group.pid]), signal.SIGKILL)
    wait_until(lambda: done() == 40, what="the end of all jobs")
    assert observer.of("one").most == 2
    assert len(observer.of("one").starts) >= 40


def test_a_worker_that_is_killed_with_all_its_processes_keeps_no_slot(worker, observer):
    flow.set_limit("default", task=tasks.observed, concurrency=1)
    enqueue_times(3, tasks.observed, observer.address, "one", 0.5)
    first = worker("--lease", f"{patient(1)}s")
    wait_until(lambda: observer.of("one").running, what="the first body")
    first.signal_all(signal.SIGKILL)
    worker("--lease", f"{patient(1)}s")
    wait_until(lambda: done() == 3, what="the end of all jobs")
    assert observer.of("one").most == 1


def test_a_child_that_is_frozen_is_killed_before_its_slot_is_given_away(worker, observer, gate):
    flow.set_limit("default", task=tasks.observed_until, concurrency=1)
    enqueue_times(2, tasks.observed_until, observer.address, "one", str(gate))
    first = worker("--lease", f"{patient(1)}s", "--concurrency", 1)
    wait_until(lambda: observer.pids, what="the first body")
    first.freeze(*observer.pids)
    worker("--lease", f"{patient(1)}s")
    first.prints("it is killed before its slots are free")
    gate.touch()
    wait_until(lambda: done() == 2, what="the end of both jobs")
    assert observer.of("one").most == 1
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_a_busy_queue_that_is_paused_starts_nothing_after_a_second_not_even_in_a_new_worker(
    worker, observer, evidence, gate
):
    enqueue_times(3000, tasks.observed, observer.address, "one", 0.01)
    first = worker(*LONG, "--processes", 2, "--concurrency", 2)
    wait_until(lambda: len(observer.starts) > 50, what="a busy queue")
    flow.pause("default", reason="the printer is out of paper")
    paused_at = now()
    wait_until(lambda: now() > paused_at + timedelta(seconds=1), what="the second")
    # They keep all threads: when they run, each child has claimed by the rules of after that second.
    enqueue_times(4, tasks.gated.using(queue_name="other"), str(gate))
    busy_queue = Job.objects.leased().filter(queue="default")
    wait_until(lambda: len(evidence.read("start")) == 4 and not busy_queue.exists(), what="the end of what runs")
    begun = len(observer.starts)
    gate.touch()
    run_all_of_another_queue(20)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    worker(*LONG)
    run_all_of_another_queue(1)
    assert len(observer.starts) == begun
    assert flow.resume("default")
    wait_until(lambda: len(observer.starts) > begun, what="the next start")


def test_the_next_job_of_a_limit_is_claimed_while_a_backlog_waits_that_was_claimed_ahead(worker, evidence):
    flow.set_limit("default", task=tasks.claimed_together, concurrency=1)
    enqueue_times(20, tasks.claimed_together)
    enqueue_times(1000, tasks.sleep, 0.02)
    worker(*LONG, "--concurrency", 2)

    def together():
        return [int(line[5]) for line in evidence.read("start") if len(line) > 5]

    wait_until(lambda: len(together()) == 20, what="the last start of a limited job")
    # The claim that follows an opening at once brings the opened job alone. The next claim of the backlog brings as
    # much as is worked off in a quarter of a second, and on a busy machine it may come first. The first jobs are
    # claimed before the worker knows how long jobs take.
    assert 1 in together()[5:], together()


#: between two customers: so that some come in each state of the breaker
APART_SECONDS = 0.05


@contextmanager
def customers(url):
    """New jobs again and again."""
    ending = threading.Event()

    def come():
        while not ending.wait(APART_SECONDS):
            tasks.buys.using(dependency="shop").enqueue(url)
        connections.close_all()

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_an_outage_of_a_server_costs_few_attempts_and_few_requests(worker, evidence, shop):
    group = worker(*LONG, "--processes", 4, "--concurrency", 2)
    breaker = flow.breaker("shop")
    with customers(shop.url):
        wait_until(lambda: shop.requests > 10, what="the first requests")
        shop.switch_off()
        wait_until(lambda: breaker.state != "closed", what="an open breaker")
        # Meanwhile come those that must not be spent.
        wait_until(lambda: Job.objects.filter(wait_reason="breaker shop").count() > 20, what="jobs that wait")
        known, before = time.monotonic(), len(evidence.read("run"))
        wait_until(lambda: len(evidence.read("run")) >= before + 3, what="three probes")
        requests, seconds = len(evidence.read("run")) - before, time.monotonic() - known
        shop.switch_on()
        wait_until(lambda: breaker.state == "closed", what="a closed breaker")
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of all jobs")
    # Those that opened it, and what was running then.
    assert sum(Job.objects.values_list("attempts", flat=True)) <= THRESHOLD + 8
    # A probe each second, and no second one before.
    assert requests <= seconds + 1
    group.prints("the circuit breaker of shop is closed")


def producer(path, total):
    """A process that adds as many jobs as it can; whether the first transaction that was refused a job went on."""
    refused, numbers = 0, count()
    while refused < total:
        try:
            with transaction.atomic():
                Ticket.objects.create(number=f"{os.getpid()}-{next(numbers)}", sold=False)
                try:
                    enqueue("full", 1)
                except QueueFull:
                    refused += 1
                    Ticket.objects.create(number=f"r{os.getpid()}-{refused}", sold=True)
        finally:
            connections.close_all()
    path.touch()


def test_producers_of_a_full_queue_are_refused_and_their_transactions_go_on(settings, tmp_path, transactional_db):
    settings.JOBQUEUE = {"QUEUES": {"full": {"MAX_READY": 30}}}
    connections.close_all()
    children = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                producer(tmp_path / f"done-{number}", 5)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    # Each process knows what it has added itself, and what the others had added a second ago.
    assert 30 <= Job.objects.filter(queue="full").count() <= 3 * 30
    assert Ticket.objects.filter(sold=True).count() == 3 * 5


@pytest.mark.parametrize(
    "limit",
    [pytest.param({"concurrency": 1}, id="a slot"), pytest.param({"rate": "20/s"}, marks=finding("F14"), id="a token")],
)
@pytest.mark.parametrize("whole", [True, False], ids=["of the queue", "of a task"])
def test_a_drain_runs_all_that_waits_for(limit, whole, worker):
    flow.set_limit("default", task=None if whole else tasks.add, **limit)
    enqueue_times(40, tasks.add, 1, 1)
    group = worker("--drain")
    assert group.wait() == 0, group.text()
    assert done() == 40


def test_a_drain_does_not_wait_for_what_is_paused(worker):
    flow.pause("default", task=tasks.add, reason="test")
    flow.set_limit("other", concurrency=0)
    flow.breaker("stripe").open("test")
    add = tasks.add
    for task in (add, add.using(queue_name="other"), add.using(queue_name="third", dependency="stripe")):
        task.enqueue(1, 1)
    group = worker("--drain")
    assert group.wait() == 0, group.text()
    assert done() == 0


def test_once_waits_for_a_token(worker):
    flow.set_limit("default", task=tasks.add, rate="1/s")
    enqueue_times(2, tasks.add, 1, 1)
    for ran in (1, 2):
        group = worker("--once")
        assert group.wait() == 0, group.text()
        assert done() == ran


@finding("F2")
@pytest.mark.parametrize("later", [{"JOBQUEUE_TEST_LIMIT": "8"}, {}], ids=["raised", "removed"])
def test_jobs_that_wait_at_a_limit_go_by_that_of_the_code_of_the_workers_that_run(later, worker):
    enqueue_times(300, tasks.limited_by_its_code)
    old = worker("--queues", "limited", JOBQUEUE_TEST_LIMIT="1")
    wait_until(lambda: done() >= 2 and Job.objects.filter(gate=3).count() > 50, what="jobs behind their gate")
    old.signal(signal.SIGTERM)
    assert old.wait() == 0, old.text()
    assert done() < 300
    worker("--queues", "limited", "--concurrency", 8, **later)
    # By the older limit, nothing or one after another.
    wait_until(lambda: Job.objects.filter(status=Job.Status.PROCESSING).count() >= 4, what="several at once")
    wait_until(lambda: done() == 300, what="all of them")
