"""A worker that polls once an hour starts at once what opens again, also on databases that notify nobody."""

import pytest

from jobqueue import flow
from jobqueue.models import Gate, GateWait, Job, Worker
from tests.app import tasks
from tests.factories import enqueue_times
from tests.marks import committed
from tests.patience import wait_until
from tests.process.probe import wait_until_asleep

pytestmark = committed
RARELY = ("--poll", "3600s..5400s", "--lease", "600s", "--concurrency", 4)
#: the sweep of gates looks once an hour, so only a wake-up can start these jobs
UNSWEPT = {"JOBQUEUE_TEST_GATE_SWEEP_SECONDS": "3600"}


def done():
    return Job.objects.filter(status=Job.Status.DONE).count()


def wait_until_idle():
    wait_until(lambda: Worker.objects.filter(stopped_at=None).exists(), what="the worker")
    wait_until_asleep(Worker.objects.filter(stopped_at=None).values_list("pid", flat=True))


def pause_of_queue():
    flow.pause("default", reason="r")
    return lambda: flow.resume("default")


def pause_of_task():
    flow.pause("default", task=tasks.buys, reason="r")
    flow.pause("default", task=tasks.add, reason="r")
    return lambda: flow.resume("default", task=tasks.add)


def limit_of_queue():
    flow.set_limit("default", concurrency=0)
    return lambda: flow.set_limit("default", concurrency=9)


def limit_of_task():
    flow.set_limit("default", task=tasks.add, concurrency=0)
    return lambda: flow.set_limit("default", task=tasks.add, concurrency=9)


def rate_of_task():
    flow.set_limit("default", task=tasks.add, rate="0")
    return lambda: flow.clear_limit("default", task=tasks.add)


def breaker():
    flow.breaker("stripe").open("r")
    return lambda: flow.breaker("stripe").close()


@pytest.mark.parametrize("shut", [pause_of_queue, pause_of_task, limit_of_queue, limit_of_task, rate_of_task, breaker])
def test_a_job_starts_at_once_when_its_way_is_open_again(shut, worker):
    let_go = shut()
    enqueue_times(3, tasks.add.using(dependency="stripe"), 1, 1)
    worker(*RARELY, **UNSWEPT)
    wait_until_idle()
    assert done() == 0
    let_go()
    wait_until(lambda: done() == 3, what="the end of all jobs")


def test_jobs_start_as_their_tokens_come(worker):
    flow.set_limit("default", task=tasks.add, rate="30/m")
    enqueue_times(4, tasks.add, 1, 1)
    worker(*RARELY, **UNSWEPT)
    wait_until(lambda: done() == 4, what="the end of all jobs")


def test_a_limit_that_is_raised_lets_the_next_jobs_start_while_others_run(worker, gate):
    flow.set_limit("default", task=tasks.gated, concurrency=1)
    enqueue_times(3, tasks.gated, str(gate))
    worker(*RARELY, **UNSWEPT)
    wait_until(lambda: Job.objects.filter(status=Job.Status.PROCESSING).count() == 1, what="the first job")
    wait_until(lambda: GateWait.objects.count() == 2 and Gate.objects.exists(), what="two that wait")
    flow.set_limit("default", task=tasks.gated, concurrency=3)
    wait_until(lambda: Job.objects.filter(status=Job.Status.PROCESSING).count() == 3, what="all three")
    gate.touch()
