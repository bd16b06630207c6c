"""A job that never comes back costs its own attempt, and nobody else anything."""

from jobqueue.models import Job, JobAttempt
from tests.app import tasks
from tests.factories import job, state, wait_until
from tests.marks import committed
from tests.process.probe import starts

pytestmark = committed


def test_a_thread_that_no_soft_limit_reaches_is_ended_by_the_hard_one_and_only_it_is_charged(
    worker, evidence, tmp_path
):
    gate = tmp_path / "gate"
    neighbours = [tasks.gated.enqueue(str(gate)).id for _ in range(3)]
    group = worker("--lease", "600s", "--heartbeat", "2s", "--concurrency", 4)
    starts(evidence, 3)
    stuck = tasks.stuck.using(timeout_seconds=0.2, max_attempts=1).enqueue().id
    wait_until(lambda: state(stuck) == "FAILED", 20)
    gate.touch()
    wait_until(lambda: {state(i) for i in neighbours} == {"DONE"}, 20)
    assert (job(stuck).attempts, job(stuck).cause) == (1, "timeout")
    assert {job(i).attempts for i in neighbours} == {0}
    assert {a.job_id for a in JobAttempt.objects.all()} == {int(stuck)}
    assert not Job.objects.leased().exists(), "recovered long before the end of the lease"
    assert "was killed by SIGKILL" in group.text()
