"""A job that never comes back costs its own attempt, and nobody else anything."""

from jobqueue.models import Job, JobAttempt
from tests.app import tasks
from tests.factories import enqueue_times, job, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import LONG
from tests.process.probe import starts

pytestmark = committed
#: the main thread of a child works, and is not taken for one that does not because it was late
ANSWERS = {"JOBQUEUE_TEST_ANSWER_SECONDS": "600"}


def test_a_thread_that_no_soft_limit_reaches_is_ended_by_the_hard_one_and_only_it_is_charged(
    worker, evidence, tmp_path
):
    gate = tmp_path / "gate"
    neighbours = [tasks.gated.enqueue(str(gate)).id for _ in range(3)]
    # They do not end before it is charged, however long they are waited for.
    group = worker(*LONG, "--concurrency", 4, JOBQUEUE_TEST_GRACE_SECONDS="1")
    starts(evidence, 3)
    stuck = tasks.stuck.using(timeout_seconds=0.2, max_attempts=1).enqueue().id
    wait_until(lambda: state(stuck) == "FAILED")
    gate.touch()
    wait_until(lambda: {state(i) for i in neighbours} == {"DONE"})
    assert (job(stuck).attempts, job(stuck).cause) == (1, "timeout")
    assert {job(i).attempts for i in neighbours} == {0}
    assert {a.job_id for a in JobAttempt.objects.all()} == {int(stuck)}
    assert not Job.objects.leased().exists(), "recovered long before the end of the lease"
    group.prints("was killed by SIGKILL")


@finding("B6")
def test_jobs_that_are_always_late_interrupt_a_neighbour_a_few_times_only(worker, evidence):
    innocent = tasks.sleep.using(priority=1).enqueue(3).id
    enqueue_times(12, tasks.stuck.using(max_attempts=1))
    worker(*LONG, "--concurrency", 4, **ANSWERS)
    wait_until(lambda: Job.objects.filter(status=Job.Status.FAILED).count() == 12, what="the end of those")
    wait_until(lambda: state(innocent) == "DONE", what="the end of the other one")
    assert set(Job.objects.filter(status=Job.Status.FAILED).values_list("cause", flat=True)) == {"timeout"}
    assert job(innocent).attempts == 0
    assert [line[2] for line in evidence.read("start")].count(innocent) <= 3


def test_nothing_begins_in_a_process_that_is_to_be_killed_and_what_waits_there_goes_elsewhere(worker, evidence, gate):
    neighbour = tasks.gated.enqueue(str(gate)).id
    first = worker(*LONG, "--concurrency", 2, JOBQUEUE_TEST_GRACE_SECONDS="600", **ANSWERS)
    starts(evidence, 1)
    late = tasks.stuck.using(max_attempts=1).enqueue().id
    starts(evidence, 2)
    others = [tasks.add.enqueue(n, n).id for n in range(20)]
    worker(*LONG, "--concurrency", 2)
    wait_until(lambda: {state(i) for i in others} == {"DONE"}, what="the others")
    assert (state(neighbour), state(late)) == ("PROCESSING", "PROCESSING")
    gate.touch()
    wait_until(lambda: state(late) == "FAILED", what="the end of the process")
    assert (state(neighbour), job(late).cause) == ("DONE", "timeout")
    first.prints("was killed by SIGKILL")
