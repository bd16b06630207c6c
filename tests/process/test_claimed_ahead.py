"""What a worker has claimed ahead of its threads goes back when others could run it sooner, or it must not run."""

from collections import Counter
from datetime import timedelta

from jobqueue.db.clock import UtcNow
from jobqueue.models import Job, Worker
from tests.app import tasks
from tests.factories import enqueue_times, job, state
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.process.harness import LONG

pytestmark = committed
NAP_SECONDS = 0.4  # shorter than a worker lets anything wait, so that a thread begins something all the time


def warm_up(worker, **environment):
    """A worker with one thread that has run so many short jobs that it claims ahead."""
    enqueue_times(200, tasks.work, 0.001)
    found = worker(*LONG, "--concurrency", 1, **environment)
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of the short jobs")
    return found


def started(evidence):
    return [int(line[2]) for line in evidence.read("start")]


@finding("A3")
def test_longer_jobs_after_short_ones_are_shared_with_workers_that_are_idle(worker, evidence):
    warm_up(worker)
    for _ in range(3):
        worker(*LONG, "--concurrency", 1)
    wait_until(lambda: Worker.objects.filter(stopped_at=None).count() == 4, what="all workers")
    enqueue_times(40, tasks.sleep, NAP_SECONDS)
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of all jobs")
    shares = Counter(line[1] for line in evidence.read("start"))
    assert len(shares) == 4
    # Ten each, if nobody ever waits for another one, and all get as much of the machine.
    assert min(shares.values()) >= 4, shares
    assert max(shares.values()) <= 20, shares


@finding("A3")
def test_an_urgent_job_passes_what_was_claimed_before_it_and_has_not_begun(worker, evidence):
    warm_up(worker)
    enqueue_times(40, tasks.sleep, NAP_SECONDS)
    wait_until(lambda: started(evidence), what="the first of them")
    urgent = int(tasks.gated.using(priority=100).enqueue("/").id)
    before = len(started(evidence))
    wait_until(lambda: state(urgent) == "DONE", what="the urgent job")
    assert started(evidence).index(urgent) <= before + 18
    Job.objects.ready().delete()


@finding("A3")
def test_a_job_that_waits_behind_another_does_not_begin_after_its_expires_at(worker, evidence, gate):
    # It gives back by itself what waits for long; here it is the thread that must notice.
    warm_up(worker, JOBQUEUE_TEST_STALLED_SECONDS="600")
    tasks.gated.enqueue(str(gate))
    wait_until(lambda: started(evidence), what="the job that the others wait for")
    late = [int(tasks.add.using(expires=timedelta(seconds=patient(1))).enqueue(n, 1).id) for n in range(5)]
    timeless = tasks.add.enqueue(7, 7).id
    wait_until(lambda: Job.objects.leased().count() == 7, what="all of them claimed ahead")
    over = Job.objects.filter(pk__in=late, expires_at__lte=UtcNow())
    wait_until(lambda: over.count() == 5, what="the end of their time")
    gate.touch()
    # One statement: between two, what is claimed could be given back and be seen by neither.
    unended = Job.objects.filter(status__in=(Job.Status.READY, Job.Status.PROCESSING))
    wait_until(lambda: not unended.exists(), what="an end of each")
    assert {(state(i), job(i).cause, job(i).attempts) for i in late} == {("CANCELED", "expired", 0)}
    assert state(timeless) == "DONE"
    assert [line[2:] for line in evidence.read("effect") if int(line[2]) in late] == []
