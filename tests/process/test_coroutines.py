"""Coroutine tasks: many at once on one loop, beside the job threads, and no worse off than what runs in a thread."""

import os
import signal

import pytest
from django.db import connections

from jobqueue import enqueue
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import cancel
from tests.app import coroutines, tasks
from tests.factories import enqueue_times, job, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import LONG, kill_sessions
from tests.settings import VENDOR

pytestmark = committed


def started(evidence, count):
    """The evidence lines of exactly `count` starts."""
    lines = wait_until(
        lambda: (found := evidence.read("start")) and len(found) >= count and found, what=f"{count} starts"
    )
    assert len(lines) == count
    return lines


def done(ids):
    return {state(i) for i in ids} == {"DONE"}


def test_a_hundred_coroutines_run_at_once_beside_one_thread(worker, evidence):
    enqueue_times(100, coroutines.meet, 100)
    assert worker("--drain", "--concurrency", 1).wait() == 0
    events = [line[0] for line in evidence.read()]
    assert events == ["start"] * 100 + ["effect"] * 100
    assert len({line[1] for line in evidence.read()}) == 1, "they ran in one process"
    # Not the fence: a job may be claimed on trial and given back.
    assert set(Job.objects.values_list("status", "attempts")) == {(Job.Status.DONE, 0)}


def test_no_more_run_at_once_than_async_concurrency_says(worker, evidence):
    for _ in range(40):
        coroutines.crowd.enqueue()
    assert worker("--drain", "--async-concurrency", 3).wait() == 0
    counts = [int(line[5]) for line in evidence.read("running")]
    assert (len(counts), max(counts)) == (40, 3)


def test_places_on_the_board_come_back_after_every_kind_of_end(worker):
    """With 8 places on the scoreboard, 120 jobs can only end if each end frees one."""
    ids = [coroutines.double.enqueue(n).id for n in range(80)]
    failing = [coroutines.strange.enqueue(kind).id for kind in ("class", "cancelled", "exit", "nul") * 10]
    options = ("--async-concurrency", 2, "--batch-size", 2, "--concurrency", 2)
    assert worker("--drain", *options).wait() == 0
    assert done(ids)
    assert {state(i) for i in failing} == {"FAILED"}


def test_full_places_for_coroutines_do_not_keep_threads_idle(worker, evidence, gate):
    waiting = [coroutines.gated.using(queue_name="coroutines").enqueue(str(gate)).id for _ in range(20)]
    group = worker("--concurrency", 1, "--async-concurrency", 5)
    started(evidence, 5)
    quick = [tasks.add.using(queue_name="sync").enqueue(n, 1).id for n in range(30)]
    wait_until(lambda: done(quick), what="the end of the sync jobs")
    wait_until(lambda: Job.objects.leased().count() == 5)
    assert Job.objects.ready().filter(fence__gt=0).count() <= 1, "claimed and given back without use"
    gate.touch()
    wait_until(lambda: done(waiting))
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_full_threads_do_not_keep_coroutines_waiting(worker, evidence, gate):
    slow = [tasks.gated.using(queue_name="sync").enqueue(str(gate)).id for _ in range(20)]
    worker("--concurrency", 1)
    started(evidence, 1)
    quick = [coroutines.double.using(queue_name="coroutines").enqueue(n).id for n in range(150)]
    wait_until(lambda: done(quick), what="the end of the coroutines")
    wait_until(lambda: Job.objects.leased().count() == 1)
    gate.touch()
    wait_until(lambda: done(slow))


def test_a_queue_that_turns_to_the_other_kind_is_heard_while_the_first_kind_runs_on(worker, evidence, gate):
    slow = [coroutines.gated.enqueue(str(gate)).id for _ in range(2)]
    worker("--concurrency", 1, "--async-concurrency", 2)
    started(evidence, 2)
    sync = tasks.gated.enqueue(str(gate)).id
    started(evidence, 3)
    both_full = Job.objects.leased().count()
    gate.touch()
    wait_until(lambda: done([*slow, sync]))
    assert both_full == 3


def test_a_queue_of_endless_sync_jobs_is_heard_when_it_turns_to_coroutines(worker, evidence, gate):
    slow = tasks.gated.enqueue(str(gate)).id
    worker("--concurrency", 1)
    started(evidence, 1)
    quick = [coroutines.double.enqueue(n).id for n in range(50)]
    wait_until(lambda: done(quick))
    assert state(slow) == "PROCESSING"


def test_slow_sync_jobs_behind_coroutines_are_not_hoarded(worker, evidence, gate):
    ids = [coroutines.gated.enqueue(str(gate)).id for _ in range(10)]
    ids += [tasks.gated.enqueue(str(gate)).id for _ in range(40)]
    worker(*LONG, "--concurrency", 1)
    started(evidence, 11)
    wait_until(lambda: Job.objects.leased().count() == 11, what="jobs that no thread can take given back")
    worker(*LONG, "--concurrency", 4)
    lines = started(evidence, 15)
    assert len({line[1] for line in lines}) == 2
    gate.touch()
    wait_until(lambda: done(ids))
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_both_kinds_in_one_queue_are_drained(worker, evidence):
    for n in range(150):
        (tasks.add.enqueue(n, 1), coroutines.double.enqueue(n))[0]
    assert worker("--drain", "--concurrency", 2, "--async-concurrency", 10).wait() == 0
    assert set(Job.objects.values_list("status", "attempts")) == {(Job.Status.DONE, 0)}
    assert len(evidence.read("effect")) == 300


@pytest.mark.parametrize(("options", "count"), [(("--once",), 1), (("--max-jobs", 7), 7)], ids=["once", "max-jobs"])
def test_quotas_count_coroutines_and_sync_jobs_alike(worker, evidence, options, count):
    for n in range(20):
        coroutines.double.enqueue(n)
        tasks.add.enqueue(n, 1)
    assert worker(*options).wait() == 0
    assert len(evidence.read("effect")) == count
    assert not Job.objects.leased().exists()


def test_a_coroutine_knows_its_job_everywhere(worker):
    job_id = coroutines.who.enqueue().id
    hook = enqueue("async-webhooks", {"n": 5})
    assert worker("--drain").wait() == 0
    assert job(job_id).result == [int(job_id)] * 3 + [1]
    assert job(hook).result == {"seen": 5}


def test_a_soft_timeout_ends_one_coroutine_and_lets_it_clean_up(worker, evidence, gate):
    neighbour = coroutines.gated.enqueue(str(gate)).id
    worker("--concurrency", 1)
    started(evidence, 1)
    late = coroutines.overlong.enqueue().id
    wait_until(lambda: state(late) == "FAILED")
    assert (job(late).cause, len(evidence.read("cleanup")), state(neighbour)) == ("timeout", 1, "PROCESSING")
    gate.touch()
    wait_until(lambda: state(neighbour) == "DONE")
    assert len({line[1] for line in evidence.read()}) == 1, "the process died"


@pytest.mark.parametrize(("task", "starts"), [("stuck", 2), ("blocking", 1)])
def test_a_hard_timeout_charges_only_the_coroutine_that_is_late(worker, evidence, gate, task, starts):
    neighbours = [coroutines.gated.enqueue(str(gate)).id for _ in range(10)]
    # They do not end before it is charged, however long they are waited for.
    worker(*LONG, JOBQUEUE_TEST_GRACE_SECONDS="1")
    started(evidence, 10)
    late = getattr(coroutines, task).enqueue().id
    wait_until(lambda: state(late) == "FAILED")
    gate.touch()
    wait_until(lambda: done(neighbours))
    assert (job(late).attempts, job(late).cause) == (starts, "timeout")
    assert {job(i).attempts for i in neighbours} == {0}
    assert {a.job_id for a in JobAttempt.objects.all()} == {int(late)}


def test_a_coroutine_sees_that_it_is_to_be_canceled(worker, evidence, gate):
    asked, other = (coroutines.patient_at.enqueue(str(gate)).id for _ in range(2))
    worker()
    started(evidence, 2)
    assert cancel(asked)
    wait_until(lambda: evidence.read("effect"), what="the end of one of them")
    gate.touch()
    wait_until(lambda: state(other) == "DONE")
    assert {(line[2], line[5]) for line in evidence.read("effect")} == {(asked, "1"), (other, "0")}


def test_sigterm_lets_running_coroutines_finish_and_starts_no_other(worker, evidence, gate):
    ids = [coroutines.gated.enqueue(str(gate)).id for _ in range(10)]
    told = coroutines.patient.using(priority=9).enqueue(600).id
    group = worker("--async-concurrency", 4)
    started(evidence, 4)
    group.signal(signal.SIGTERM)
    wait_until(lambda: state(told) == "DONE", what="a coroutine that heeds should_stop")
    gate.touch()
    assert group.wait() == 0
    assert sorted(state(i) for i in ids) == ["DONE"] * 3 + ["READY"] * 7
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert len(evidence.read("start")) == 4


def test_a_blocked_loop_keeps_few_coroutines_from_others_and_gives_them_back_at_sigterm(worker, evidence):
    blocker = coroutines.blocking_for_ever.enqueue().id
    # It gives back by itself what waits for long; here SIGTERM comes before.
    group = worker(*LONG, "--shutdown-timeout", "600s", JOBQUEUE_TEST_STALLED_SECONDS="600")
    started(evidence, 1)
    ids = [coroutines.double.enqueue(n).id for n in range(50)]
    wait_until(lambda: Job.objects.leased().count() > 1, what="coroutines claimed behind the blocker")
    assert worker(*LONG, "--drain").wait() == 0
    kept = wait_until(lambda: (leased := Job.objects.leased().count() - 1) <= 2 and leased, what="few kept jobs")
    group.signal(signal.SIGTERM)
    wait_until(lambda: Job.objects.leased().count() == 1, what="unstarted coroutines given back")
    group.signal(signal.SIGTERM)
    assert group.wait() == 128 + signal.SIGTERM
    assert sorted(state(i) for i in [blocker, *ids]) == ["DONE"] * (50 - kept) + ["READY"] * (kept + 1)
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@finding("A3")
def test_coroutines_that_wait_behind_a_blocked_loop_are_run_by_another_worker(worker, evidence):
    blocker = coroutines.blocking_for_ever.enqueue().id
    group = worker(*LONG, "--shutdown-timeout", "1s")
    started(evidence, 1)
    ids = [coroutines.double.enqueue(n).id for n in range(50)]
    wait_until(lambda: Job.objects.leased().count() > 1, what="coroutines claimed behind the blocker")
    other = worker(*LONG)
    wait_until(lambda: done(ids), what="the end of all others")
    assert state(blocker) == "PROCESSING"
    for found in (group, other):
        found.signal(signal.SIGTERM)
    assert other.wait() == 0
    group.wait()
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_coroutines_of_a_killed_child_run_again(worker, evidence, gate):
    ids = [coroutines.gated.enqueue(str(gate)).id for _ in range(20)]
    worker(*LONG)
    child = int(started(evidence, 20)[0][1])
    os.kill(child, signal.SIGKILL)
    again = started(evidence, 40)[20:]
    gate.touch()
    wait_until(lambda: done(ids))
    assert {line[1] for line in again}.isdisjoint({str(child)})
    assert set(Job.objects.values_list("attempts", "cause")) == {(1, "lost")}


def test_strange_ends_of_every_kind_leave_the_loop_and_the_worker_alive(worker, evidence, gate):
    bystander = coroutines.gated.enqueue(str(gate)).id
    ids = [coroutines.strange.enqueue(kind).id for kind in (*tasks.STRANGE, *coroutines.ODD)]
    group = worker("--concurrency", 1)
    wait_until(lambda: {state(i) for i in ids} == {"FAILED"}, what="the end of all strange coroutines")
    gate.touch()
    wait_until(lambda: state(bystander) == "DONE")
    assert len({line[1] for line in evidence.read()}) == 1, "a child process died"
    assert all(job(i).last_error and job(i).attempts == 1 for i in ids)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_coroutine_that_cancels_all_others_fails_them_and_not_the_worker(worker, evidence, gate):
    others = [coroutines.gated.using(max_attempts=1).enqueue(str(gate)).id for _ in range(5)]
    worker("--concurrency", 1)
    started(evidence, 5)
    coroutines.cancels_everybody.enqueue()
    wait_until(lambda: {state(i) for i in others} == {"FAILED"})
    last = coroutines.double.enqueue(2).id
    wait_until(lambda: state(last) == "DONE")
    assert "CancelledError" in job(others[0]).last_error
    assert len({line[1] for line in evidence.read()}) == 1, "a child process died"


def test_what_a_coroutine_leaves_running_ends_with_its_job(worker, evidence, gate):
    job_id = coroutines.leaves_a_task_behind.enqueue(str(gate)).id
    worker()
    wait_until(lambda: state(job_id) == "DONE")
    assert [line[0] for line in evidence.read()] == ["start", "cleanup"]
    gate.touch()
    last = coroutines.double.enqueue(2).id
    wait_until(lambda: state(last) == "DONE")
    assert [line[2] for line in evidence.read("effect")] == [last]


def test_a_transaction_left_open_is_undone_before_another_coroutine_writes(worker, evidence):
    bad = [coroutines.leaves_a_transaction_open.enqueue().id for _ in range(5)]
    good = [coroutines.writes.enqueue(4).id for _ in range(10)]
    bad += [coroutines.leaves_a_transaction_open.enqueue().id for _ in range(5)]
    assert worker("--drain", "--queues=-written").wait() == 0
    assert done(good)
    assert {state(i) for i in bad} == {"FAILED"}
    assert "TransactionLeftOpen" in job(bad[0]).last_error
    assert Job.objects.filter(queue="written").count() == 40
    assert len({tuple(line[5:]) for line in evidence.read("effect")}) == 1, "their calls share one thread"


def test_calls_from_the_loop_to_the_thread_and_back_do_not_wait_for_each_other(worker):
    ids = [coroutines.there_and_back.enqueue(3).id for _ in range(20)]
    assert worker("--drain").wait() == 0
    assert {job(i).result for i in ids} == {4 * 20}


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions that could be killed")
def test_a_killed_connection_of_the_coroutines_is_replaced(worker, evidence, gate):
    others = [coroutines.writes.enqueue(200).id for _ in range(4)]
    cut = coroutines.writes_before_and_after.enqueue(str(gate)).id
    worker("--queues=-written")
    wait_until(lambda: evidence.read("inside"), what="a transaction")
    assert kill_sessions()
    gate.touch()
    wait_until(lambda: done([*others, cut]), what="the end of all jobs")
    assert job(cut).attempts == 1
    # They were between two calls. The session that all share was replaced before the next one.
    assert {job(i).attempts for i in others} == {0}
    assert Job.objects.filter(queue="written").count() == 4 * 200 + 2
    assert len({line[1] for line in evidence.read()}) == 1, "the process died"


def test_finish_commits_the_effect_of_a_coroutine_with_its_end(worker):
    job_id = coroutines.finishes.enqueue().id
    assert worker("--drain", "--queues=-written").wait() == 0
    assert (state(job_id), job(job_id).result, job(job_id).attempts) == ("DONE", "with the effect", 0)
    assert Job.objects.filter(queue="written").count() == 1


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks that could keep an end from being written")
def test_a_place_whose_coroutine_wants_its_own_ack_is_free_when_that_is_committed(worker, evidence, gate):
    first, second = (coroutines.gated_and_acked.enqueue(str(gate)).id for _ in range(2))
    worker(*LONG, "--async-concurrency", 1)
    started(evidence, 1)
    other = connections["default"].copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT id FROM job_queue WHERE id = %s FOR UPDATE", [first])
        gate.touch()
        wait_until(lambda: evidence.read("ends"), what="the end of the first one, whose ack cannot be written")
        # It comes after the second one, which the worker has passed over when this one runs.
        tasks.add.enqueue(1, 1)
        wait_until(lambda: evidence.read("effect"), what="the job in a thread")
        started(evidence, 1)
    finally:
        other.close()
    wait_until(lambda: done([first, second]))
