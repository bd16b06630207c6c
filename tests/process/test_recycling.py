"""Children that are replaced when they have done enough: nothing is lost, nothing is charged, work goes on."""

import signal

from jobqueue.models import Job, JobAttempt, Worker
from tests.app import tasks
from tests.factories import seconds_from_now, state
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.process.probe import starts

pytestmark = committed


def all_done():
    return not Job.objects.exclude(status=Job.Status.DONE).exists()


def reasons():
    return list(Worker.objects.exclude(stopped_at=None).order_by("id").values_list("stop_reason", flat=True))


def unharmed(evidence, total):
    """Every job ran once and nobody was charged."""
    assert len(evidence.read("effect")) == total
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert not JobAttempt.objects.exists()


def test_a_child_is_replaced_after_its_number_of_jobs(worker, evidence):
    for n in range(30):
        tasks.add.enqueue(n, 0)
    group = worker("--recycle-jobs", 20, "--concurrency", 2, "--batch-size", 5)
    wait_until(lambda: "recycled: it has run its number of jobs" in reasons(), what="a child that has run enough")
    # Only now: it may have run more than its number before the ends of so many were written.
    for n in range(30):
        tasks.add.enqueue(n, 0)
    wait_until(all_done)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    unharmed(evidence, 60)
    assert len({line[1] for line in evidence.read("effect")}) >= 2
    assert "ended unexpectedly" not in group.text()


def test_a_child_is_replaced_after_its_time_and_finishes_what_runs(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    running = tasks.gated.using(priority=9).enqueue(str(gate)).id
    group = worker("--recycle-time", "3s", "--concurrency", 1)
    first = starts(evidence)[0][1]
    began = Worker.objects.get(pid=int(first)).started_at
    wait_until(lambda: seconds_from_now(began) < -4, what="the end of its time, long before the job's")
    assert state(running) == "PROCESSING"
    gate.touch()
    wait_until(lambda: state(running) == "DONE")
    wait_until(lambda: "recycled: its time is over" in reasons())
    later = tasks.add.enqueue(1, 1).id
    wait_until(lambda: state(later) == "DONE")
    assert evidence.read("effect")[-1][1] != first
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    unharmed(evidence, 2)


def test_a_recycled_child_gives_back_what_it_claimed_ahead(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    for n in range(10):
        tasks.add.using(priority=9).enqueue(n, 0)
    running = tasks.gated.using(priority=5).enqueue(str(gate)).id
    rest = [tasks.add.enqueue(n, 0).id for n in range(20)]
    # Long enough to claim ahead on a busy machine. A job that lasts must not send it back before the time is over.
    seconds = patient(1.2)
    group = worker("--recycle-time", f"{seconds}s", "--concurrency", 1, JOBQUEUE_TEST_STALLED_SECONDS="600")
    starts(evidence)
    wait_until(lambda: "PROCESSING" in {state(i) for i in rest}, what="jobs that are claimed ahead")
    # Each state is read by itself, and every time anew: what was just claimed or given back may not be committed yet.
    wait_until(lambda: {state(i) for i in rest} == {"READY"}, what="jobs that were claimed ahead to be back")
    assert state(running) == "PROCESSING"
    assert group.members()
    gate.touch()
    wait_until(all_done)
    unharmed(evidence, 31)


def test_children_that_started_together_do_not_leave_together(worker):
    # Drawn from a second: that seven of them fall into one tenth comes once in 100 000 runs.
    worker("--recycle-time", "5s", "--processes", 7)
    first = Worker.objects.order_by("id")[:7]
    wait_until(lambda: len(left := [row.stopped_at for row in first.all()]) == 7 and all(left))
    left = [row.stopped_at for row in first.all()]
    assert (max(left) - min(left)).total_seconds() > 0.1
    assert set(reasons()) == {"recycled: its time is over"}


def test_a_drain_with_recycling_drains(worker, evidence):
    for n in range(60):
        tasks.add.enqueue(n, 0)
    group = worker("--drain", "--recycle-jobs", 10, "--processes", 2, "--batch-size", 5)
    assert group.wait() == 0
    assert all_done()
    unharmed(evidence, 60)
