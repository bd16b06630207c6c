"""Concurrency follows the health of the database, and claims the circuit breakers of what the jobs depend on."""

import re
import signal
import threading
import time

import pytest
from django.db import connection, connections

from jobqueue.models import Job
from tests.app import tasks
from tests.factories import enqueue_times, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import kill_sessions
from tests.process.probe import free_port, metric
from tests.settings import VENDOR

pytestmark = committed
has_server = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server that could be in trouble")
LONG = ("--lease", "600s", "--heartbeat", "0.5s")


def levels(group):
    """The levels that were told, in order."""
    return [level for level, _ in changes(group)]


def changes(group):
    """The same with the reason for each."""
    return [(int(n), why) for n, why in re.findall(r": (\d+) of 8 jobs at once: (.*)", group.text())]


def at_full_level(group):
    """Whether that is so. It rises only while there is more to do, so there is more."""
    if Job.objects.ready().count() < 200:
        enqueue_times(200, tasks.work, 0.05)
    return (levels(group) or [8])[-1] == 8


def up_to_full(told):
    """All but what may have come after the last rise to full."""
    while told and told[-1][0] != 8:
        told.pop()
    return told


def assert_each_is_told(told, level):
    """Down to 1 by halves because the database is unreachable, then up again by ones; each change is logged once."""
    lowest = level
    for new, why in told:
        healthy = why == "the database is healthy"
        assert new == (level + 1 if healthy else level // 2), told
        # What else can lower it on a busy machine.
        assert healthy or why == "the database is unreachable" or "longer than usual" in why or "redone" in why
        level, lowest = new, min(new, lowest)
    assert (level, lowest) == (8, 1)
    assert "the database is unreachable" in [why for _, why in told]


@has_server
def test_an_absent_database_lowers_the_level_and_its_return_restores_it_within_seconds(account, worker):
    enqueue_times(3000, tasks.work, 0.05)
    port = free_port()
    group = worker(*LONG, "--concurrency", 8, "--probe-port", port, **account.environment())
    wait_until(lambda: Job.objects.filter(status=Job.Status.DONE).count() > 50)
    wait_until(lambda: at_full_level(group) and metric(port, "jobs_allowed") == 8)
    before = changes(group)
    account.set_password("changed")
    kill_sessions()
    wait_until(lambda: 1 in levels(group), what="the lowest level")
    assert metric(port, "jobs_allowed") == 1
    account.set_password(account.password)
    group.prints("answers again")
    # Seven steps of half a second, on a machine that may have other things to do.
    wait_until(lambda: at_full_level(group) and metric(port, "jobs_allowed") == 8)
    # Claims that became slow for another reason, on a machine with other things to do, are told too.
    told = wait_until(lambda: at_full_level(group) and up_to_full(changes(group)[len(before) :]))
    assert_each_is_told(told, (before or [(8, "")])[-1][0])
    if all("away" in why or "healthy" in why for _, why in told):
        assert [level for level, _ in told] == [4, 2, 1, 2, 3, 4, 5, 6, 7, 8]
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@has_server
def test_long_jobs_do_not_keep_a_child_from_noticing_that_the_database_is_back(account, worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    tasks.gated.using(priority=9).enqueue(str(gate))
    group = worker(*LONG, "--concurrency", 8, **account.environment())
    wait_until(lambda: evidence.read("start"))
    account.set_password("changed")
    kill_sessions()
    wait_until(lambda: 1 in levels(group), what="the lowest level")
    account.set_password(account.password)
    job_id = tasks.add.enqueue(1, 1).id
    wait_until(lambda: state(job_id) == "DONE", what="a job that was enqueued while another one runs")
    gate.touch()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


LOCK = {
    "mysql": ("LOCK TABLES job_queue WRITE", "UNLOCK TABLES"),
    "mariadb": ("LOCK TABLES job_queue WRITE", "UNLOCK TABLES"),
    "postgres": ("BEGIN; LOCK TABLE job_queue IN ACCESS EXCLUSIVE MODE", "COMMIT"),
}


class Slowdown(threading.Thread):
    """Another session that keeps the job table locked nearly all the time."""

    def __init__(self):
        super().__init__()
        self.over = threading.Event()

    def run(self):
        lock, unlock = LOCK[VENDOR]
        with connection.cursor() as cursor:
            seconds = 0.5
            while not self.over.is_set():
                cursor.execute(lock)
                self.over.wait(seconds)
                cursor.execute(unlock)
                time.sleep(0.005)
                # On a slow machine half a second may not be many times as long as usual.
                seconds = min(4.0, 1.1 * seconds)
        connections.close_all()


@has_server
def test_statements_that_became_much_slower_lower_the_level(worker):
    enqueue_times(2000, tasks.work, 0.05)
    group = worker(*LONG, "--concurrency", 8, "--batch-size", 8)
    wait_until(lambda: Job.objects.filter(status=Job.Status.DONE).count() > 200)
    slowdown = Slowdown()
    slowdown.start()
    try:
        wait_until(lambda: levels(group), what="a lower level")
    finally:
        slowdown.over.set()
        slowdown.join()
    assert levels(group)[0] == 4
    group.prints("many times longer than usual")
    wait_until(lambda: at_full_level(group), what="full concurrency")


OUTSIDE = tasks.depends_on.using(queue_name="outside", dependency="outside")
OPEN = "the circuit breaker of outside is open"


def behind_the_breaker():
    """The jobs that wait for the dependency, unseen by claims."""
    return Job.objects.filter(status=Job.Status.READY, wait_reason="breaker outside").exclude(gate=0)


def test_a_failing_dependency_opens_its_breaker_until_it_is_back(worker, evidence, tmp_path):
    outside = tmp_path / "outside"
    enqueue_times(40, OUTSIDE, str(outside))
    port = free_port()
    group = worker("--batch-size", 10, "--concurrency", 2, "--probe-port", port)
    group.prints(OPEN)
    wait_until(lambda: behind_the_breaker().count() >= 30, what="jobs that wait for the breaker")
    begun, seen = time.monotonic(), len(evidence.read("start"))
    others = [tasks.add.enqueue(n, n).id for n in range(50)]
    wait_until(lambda: {state(i) for i in others} == {"DONE"}, what="the work of another queue")
    wait_until(lambda: len(evidence.read("start")) - seen >= 5, what="five probes")
    # One each second: so they do not come sooner.
    assert len(evidence.read("start")) - seen <= 2 + (time.monotonic() - begun)
    assert metric(port, "breakers_open") >= 1
    outside.touch()
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of all jobs")
    group.prints("the circuit breaker of outside is closed: the probe succeeded")
    wait_until(lambda: metric(port, "breakers_open") == 0, what="its figure")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_queue_that_fails_for_a_service_without_a_name_is_claimed_at_full_speed(worker, evidence, tmp_path):
    for _ in range(40):
        tasks.depends_on.using(queue_name="outside").enqueue(str(tmp_path / "outside"))
    group = worker()
    wait_until(lambda: len(evidence.read("start")) > 200)
    assert "circuit breaker" not in group.text()


def test_a_drain_ends_while_jobs_wait_for_an_open_breaker(worker, evidence, tmp_path):
    enqueue_times(14, OUTSIDE.using(max_attempts=1), str(tmp_path / "outside"))
    group = worker("--drain", "--concurrency", 1, "--batch-size", 1)
    assert group.wait() == 0
    group.prints(OPEN)
    # What the settings say: five failures open it.
    assert Job.objects.filter(status=Job.Status.FAILED).count() == 5
    assert Job.objects.filter(status=Job.Status.READY, attempts=0).count() == 9


@finding("B5")
def test_a_task_whose_dependency_is_down_holds_up_no_other_task_of_its_queue(worker, evidence, tmp_path):
    enqueue_times(150, tasks.depends_on.using(dependency="outside"), str(tmp_path / "outside"))
    other = tasks.add.enqueue(1, 1).id
    group = worker(*LONG, "--batch-size", 10, "--concurrency", 2)
    wait_until(lambda: state(other) == "DONE", what="the job of the other task")
    group.prints(OPEN)
    # Not all of those before it have been tried.
    assert len({job_id for _, _, job_id, *_ in evidence.read("start")}) < 150


def test_jobs_behind_a_breaker_start_when_it_closes_and_have_lost_no_attempt(worker, evidence, tmp_path):
    outside = tmp_path / "outside"
    enqueue_times(150, OUTSIDE, str(outside))
    worker(*LONG, "--batch-size", 10, "--concurrency", 2)
    wait_until(lambda: behind_the_breaker().count() >= 20, what="jobs that wait for the breaker")
    outside.touch()
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of all")
    assert len(evidence.read("effect")) == 150
    # Five opened it, and the other thread may have been running at that moment.
    assert sum(Job.objects.values_list("attempts", flat=True)) <= 5 + 1


@finding("item-4")
def test_code_that_is_wrong_slows_nobody_down(worker, evidence):
    wrong = ["AttributeError", "IntegrityError", "NotImplementedError", "RuntimeError"]
    for name in wrong:
        enqueue_times(20, tasks.is_wrong.using(queue_name=name, dependency="outside"), name)
    group = worker("--batch-size", 1, "--concurrency", 1)
    wait_until(lambda: Job.objects.filter(status=Job.Status.FAILED).count() == 80, what="the end of all")
    assert "circuit breaker" not in group.text()
