"""Workers send Django Tasks' signals around each run, and no receiver costs a job anything."""

from datetime import timedelta

import pytest

from jobqueue.models import Job
from tests.app import coroutines, tasks
from tests.factories import job, state
from tests.marks import committed
from tests.patience import wait_until

pytestmark = committed
#: a receiver that a busy machine keeps waiting is no reason to leave without it
NOBODY_HANGS = {"JOBQUEUE_TEST_STUCK_SECONDS": "120"}
ONE_HANGS = {"JOBQUEUE_TEST_STUCK_SECONDS": "1"}


def told(evidence, event, job_id):
    return [line[2:] for line in evidence.read(event) if line[1] == job_id]


def test_each_run_is_told_at_its_start_and_after_its_end_is_committed(worker, evidence):
    good, coroutine = tasks.add.enqueue(1, 1).id, coroutines.double.enqueue(2).id
    bad = tasks.boom.using(max_attempts=2).enqueue().id
    strange = tasks.strange.enqueue("base group").id
    group = worker(JOBQUEUE_TEST_RECEIVERS="tell", **NOBODY_HANGS)
    wait_until(lambda: {state(bad), state(strange)} == {"FAILED"})
    group.signal(15)
    assert group.wait() == 0
    for job_id in (good, coroutine):
        assert told(evidence, "started", job_id) == [["RUNNING", "-", "JobQueueBackend", "-", job_id, "1", "0", "True"]]
        (finished,) = told(evidence, "finished", job_id)
        # What is set in a contextvar at the start is there at the end; the end is told when everybody can read it.
        begun = finished.pop(4)
        assert finished == ["SUCCESSFUL", "DONE", "JobQueueBackend", "-", "1", "0", "True"]
        # On an event loop that depends on how Django's version calls a receiver that is no coroutine function.
        assert begun == job_id or job_id == coroutine
    first, last = told(evidence, "finished", bad)
    assert (first[0], first[3:7]) == ("READY", ["ValueError", bad, "1", "1"])
    assert last == ["FAILED", "FAILED", "JobQueueBackend", "ValueError", bad, "2", "1", "True"]
    assert told(evidence, "finished", strange)[0][3] == "BaseExceptionGroup"
    assert len(evidence.read("awaited")) == 5


@pytest.mark.parametrize(("kind", "words"), [("raise,open", "no, not when"), ("exit", "away when")])
def test_what_a_receiver_does_changes_nothing(worker, evidence, kind, words):
    ids = [tasks.add.enqueue(n, 1).id for n in range(5)] + [coroutines.double.enqueue(n).id for n in range(5)]
    group = worker("--drain", JOBQUEUE_TEST_RECEIVERS=kind, **NOBODY_HANGS)
    assert group.wait() == 0
    assert {(row.status, row.attempts) for row in Job.objects.all()} == {(Job.Status.DONE, 0)}
    assert sorted(line[2] for line in evidence.read("effect")) == sorted(ids)
    assert len(evidence.read("finished")) == len(ids)
    for when in ("started", "finished"):
        group.prints(f"{words} {when}")


def test_a_receiver_that_hangs_costs_no_job_and_no_lease(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    long = tasks.gated.enqueue(str(gate)).id
    ids = [tasks.add.enqueue(n, 1).id for n in range(300)]
    group = worker(JOBQUEUE_TEST_RECEIVERS="hang", **ONE_HANGS)
    wait_until(lambda: {state(job_id) for job_id in ids} == {"DONE"})
    wait_until(lambda: evidence.read("finished"), what="the receiver that hangs")
    before = job(long).lock_until
    wait_until(lambda: job(long).lock_until > before + timedelta(seconds=2), what="renewals meanwhile")
    gate.touch()
    wait_until(lambda: state(long) == "DONE")
    assert (job(long).attempts, job(long).fence) == (0, 1)
    assert len(evidence.read("finished")) == 1
    group.signal(15)
    assert group.wait() == 0


def test_a_receiver_of_job_done_that_hangs_keeps_no_end_from_being_written(worker, evidence):
    ids = [tasks.add.enqueue(n, 1).id for n in range(300)]
    group = worker(JOBQUEUE_TEST_RECEIVERS="done hang", **ONE_HANGS)
    wait_until(lambda: {state(job_id) for job_id in ids} == {"DONE"})
    assert len(evidence.read("done")) == 1
    group.signal(15)
    assert group.wait() == 0


def test_a_receiver_of_job_done_that_leaves_a_transaction_open_undoes_no_end(worker, evidence):
    ids = [tasks.add.enqueue(n, 1).id for n in range(20)]
    assert worker("--drain", JOBQUEUE_TEST_RECEIVERS="done open", **NOBODY_HANGS).wait() == 0
    assert {state(job_id) for job_id in ids} == {"DONE"}
    assert len(evidence.read("done")) == 20


def test_a_slow_receiver_gets_every_signal_before_the_worker_ends(worker, evidence):
    ids = [tasks.greet.enqueue("ann", n).id for n in range(110)]
    group = worker("--drain", JOBQUEUE_TEST_RECEIVERS="slow", **NOBODY_HANGS)
    assert group.wait() == 0
    assert sorted(line[1] for line in evidence.read("finished")) == sorted(ids)


def test_a_soft_limit_ends_a_job_that_a_receiver_keeps_from_beginning(worker, evidence):
    late = tasks.overlong.enqueue().id
    assert worker("--drain", JOBQUEUE_TEST_RECEIVERS="pause").wait() == 0
    assert (state(late), job(late).cause) == ("FAILED", "timeout")
    assert evidence.read("start") == []
