"""Workers delete ended jobs while they run others, and a killed one leaves nothing behind."""

import json
import signal

from jobqueue import enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance import pruner
from jobqueue.models import Job, LockRow
from tests.app import tasks
from tests.marks import committed
from tests.patience import wait_until
from tests.retention.helpers import DAY, prune

pytestmark = committed


def old(count):
    """So many jobs that ended eight days ago, and one that ended yesterday, whose id it returns."""
    *ids, young = enqueue_many("old", range(count + 1))
    done = {"status": Job.Status.DONE, "run_at": UtcNowPlus(-9 * DAY)}
    Job.objects.filter(pk__in=ids).update(**done, finished_at=UtcNowPlus(-8 * DAY))
    Job.objects.filter(pk=young).update(**done, finished_at=UtcNowPlus(-DAY))
    return young


def test_a_worker_deletes_old_jobs_while_it_runs_others(worker):
    young = old(2500)
    jobs = [int(tasks.add.enqueue(n, 1).id) for n in range(50)]
    group = worker("--queues=-old")
    wait_until(lambda: Job.objects.filter(queue="old").count() == 1, what="the deletion of old jobs")
    wait_until(lambda: Job.objects.filter(pk__in=jobs, status=Job.Status.DONE).count() == 50)
    assert Job.objects.get(queue="old").pk == young
    group.prints("pruner: deleted 2500 ended jobs")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert "Traceback" not in group.text()


def test_one_worker_prunes_for_all(worker):
    old(10)
    groups = [worker() for _ in range(2)]
    wait_until(lambda: LockRow.objects.filter(pk=pruner.LOCK_NAME).exists())

    def told():
        return sum("pruner: deleted 10 ended jobs" in group.text() for group in groups)

    # At the end of the walk, which comes after the deletion.
    wait_until(told, what="the line of the worker that prunes")
    assert Job.objects.filter(queue="old").count() == 1
    for group in groups:
        group.signal(signal.SIGTERM)
    assert [group.wait() for group in groups] == [0, 0]
    assert told() == 1


def test_a_worker_that_is_killed_while_it_prunes_leaves_nothing_to_repair(worker):
    young = old(20_000)
    group = worker("--queues=-old")
    wait_until(lambda: Job.objects.filter(queue="old").count() < 20_001, what="the first deletion")
    group.signal_all(signal.SIGKILL)
    group.end()
    assert Job.objects.filter(pk=young).exists()
    prune()
    assert list(Job.objects.values_list("pk", flat=True)) == [young]


def test_a_worker_without_a_reaper_leaves_them_to_reap_leases(worker, start):
    young = old(5)
    group = worker("--no-reaper", "--drain", "--queues=-old")
    assert group.wait() == 0
    assert Job.objects.count() == 6
    reaped = start("reap_leases", "--json")
    assert reaped.wait() == 0
    assert json.loads(reaped.text().splitlines()[-1])["jobs_deleted"] == 5
    assert list(Job.objects.values_list("pk", flat=True)) == [young]
