"""What a worker has claimed ahead goes back when its threads hang."""

from jobqueue.models import Job
from tests.app import tasks
from tests.factories import enqueue_times
from tests.marks import committed
from tests.patience import wait_until

pytestmark = committed


def test_jobs_that_wait_behind_threads_that_hang_are_run_by_another_worker(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    # So that much is claimed ahead of the two that hang.
    enqueue_times(200, tasks.work, 0.001)
    hanging = [tasks.gated.enqueue(str(gate)).id for _ in range(2)]
    waiting = [tasks.add.enqueue(n, 1).id for n in range(40)]
    worker("--concurrency", 2, "--no-adaptive")
    wait_until(lambda: len(evidence.read("start")) == 2, what="both of them")
    worker("--concurrency", 2)
    wait_until(lambda: Job.objects.filter(pk__in=waiting, status=Job.Status.DONE).count() == 40, what="the others")
    assert sorted(line[2] for line in evidence.read("effect")) == sorted(waiting)
    gate.touch()
    wait_until(lambda: Job.objects.filter(pk__in=hanging, status=Job.Status.DONE).count() == 2, what="those two")
    assert not Job.objects.filter(attempts__gt=0).exists()
