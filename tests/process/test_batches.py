"""Batch handlers in real workers: filled from what is due, killed in the middle, poisoned."""

import os
import signal
from collections import Counter

from jobqueue import enqueue, enqueue_many
from jobqueue.models import Job
from tests.app import tasks
from tests.factories import job, state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import LONG
from tests.process.probe import starts

pytestmark = committed


def test_calls_are_filled_from_what_is_due_and_other_queues_have_their_threads(worker, evidence):
    ids = enqueue_many("loads", [{}] * 450)
    others = [tasks.add.enqueue(n, 0).id for n in range(20)]
    assert worker("--concurrency", 2, "--drain").wait() == 0
    lines = starts(evidence, 450)
    assert sorted(int(line[2]) for line in lines) == ids, "each was started once"
    sizes = [int(line[5]) for line in lines]
    assert Counter(sizes)[100] >= 300
    assert max(sizes) == 100
    assert {state(i) for i in (ids[0], ids[-1], *others)} == {"DONE"}
    assert not Job.objects.exclude(status=Job.Status.DONE).exists()


def test_after_a_kill_the_jobs_of_the_call_run_alone_but_those_it_had_acked(worker, evidence, gate):
    acked = enqueue_many("loads", [{"ack": 1}] * 5)
    ids = [*enqueue_many("loads", [{}] * 14), enqueue("loads", {"gate": str(gate)})]
    group = worker(*LONG)
    first = starts(evidence, 20)
    assert {line[5] for line in first} == {"20"}
    wait_until(lambda: {state(i) for i in acked} == {"DONE"})
    os.kill(int(first[0][1]), signal.SIGKILL)
    gate.touch()
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of all")
    again = evidence.read("start")[20:]
    assert sorted(int(line[2]) for line in again) == ids
    assert {(line[3], line[5]) for line in again} == {("2", "1")}, "second attempts, alone"
    assert {(job(i).attempts, job(i).cause) for i in ids} == {(1, "lost")}
    assert {job(i).attempts for i in acked} == {0}
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_row_that_kills_its_worker_is_failed_after_its_attempts_and_takes_nobody_along(worker, evidence):
    before = enqueue_many("loads", [{}] * 20, max_attempts=2)
    poison = enqueue("loads", {"die": 1}, max_attempts=3)
    after = enqueue_many("loads", [{}] * 20, max_attempts=2)
    only = enqueue("loads", {}, max_attempts=1)
    worker(*LONG, "--concurrency", 1)
    wait_until(lambda: state(poison) == "FAILED")
    wait_until(lambda: {state(i) for i in (*before, *after, only)} == {"DONE"})
    lines = evidence.read("start")
    shown = [(line[3], line[5]) for line in lines if line[2] == str(poison)]
    assert shown == [("1", "41"), ("2", "1"), ("3", "1")], "attempts, and how many were in the call"
    assert (job(poison).attempts, job(poison).cause) == (3, "lost")
    assert {job(i).attempts for i in (*before, *after)} == {1}
    assert [(line[3], line[5]) for line in lines if line[2] == str(only)] == [("1", "1")]


def test_sigterm_lets_the_call_end_and_gives_back_what_waits_without_an_attempt(worker, evidence, gate):
    enqueue_many("loads", [{}] * 100)  # so quick that the worker claims ahead
    stuck = enqueue_many("loads", [{"gate": str(gate)}] * 130)

    def held():
        return set(Job.objects.leased().values_list("pk", flat=True))

    # For as long as it takes: what is claimed ahead of a call that lasts would go back after a second.
    group = worker("--concurrency", 1, JOBQUEUE_TEST_STALLED_SECONDS="600")
    # Which jobs share the call is open: a claim passes over rows that the ack of others has locked just then.
    started = {int(line[2]) for line in starts(evidence, 101)}
    running = started - {int(line[2]) for line in evidence.read("effect")}
    assert running & set(stuck)
    wait_until(lambda: len(held() - started) >= 10, what="jobs claimed ahead")
    waiting = held() - started
    group.signal(signal.SIGTERM)
    wait_until(lambda: held() == running, what="what waits was given back")
    gate.touch()
    assert group.wait() == 0
    assert {(state(i), job(i).attempts) for i in running} == {("DONE", 0)}
    assert {(state(i), job(i).attempts) for i in waiting} == {("READY", 0)}
