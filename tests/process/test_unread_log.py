"""Nobody reads what a worker has to say: it goes on, and obeys."""

import os
import signal

import pytest

from jobqueue.models import Job
from tests.app import tasks
from tests.factories import job, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.probe import let_run_out, renewed, starts
from tests.process.test_busy_monitor import lapse

pytestmark = committed
OPTIONS = ("runworker", "--lease", "20s", "--heartbeat", "0.5s", "-v", "0")


class Pipe:
    """A pipe that is somebody's stderr."""

    def __init__(self, path):
        os.mkfifo(path)
        self.end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        # Opened by a shell, which becomes the worker.
        self.prefix = ("sh", "-c", f'exec "$@" 2>{path}', "sh")

    def fill(self):
        """From now on who writes waits."""
        for size in (4096, 1):
            try:
                while True:
                    os.write(self.end, b"x" * size)
            except BlockingIOError:
                pass


@pytest.fixture
def pipe(tmp_path):
    made = Pipe(tmp_path / "stderr")
    yield made
    os.close(made.end)


@finding("A6")
def test_the_job_of_a_child_that_dies_starts_again_though_nobody_reads_of_the_death(start, pipe, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    start(*OPTIONS, prefix=pipe.prefix)
    (first,) = starts(evidence)
    pipe.fill()
    os.kill(int(first[1]), signal.SIGKILL)
    assert starts(evidence, 2)[1][3:] == ["2", "2"]
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")


def test_leases_are_renewed_though_nobody_reads_what_was_reaped(start, pipe, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    start(*OPTIONS, "--queues", "default", prefix=pipe.prefix)
    starts(evidence)
    pipe.fill()
    for _ in range(3):
        lapse(5)
        wait_until(lambda: not Job.objects.lapsed().exists(), what="reaping")
    renewed(job_id)
    assert (job(job_id).fence, len(evidence.read("start"))) == (1, 1)


@finding("A6")
def test_the_second_sigterm_ends_a_worker_that_nobody_reads(start, pipe, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = start(*OPTIONS, prefix=pipe.prefix)
    starts(evidence)
    pipe.fill()
    assert group.wait_told_again(signal.SIGTERM) == 128 + signal.SIGTERM
    assert (state(job_id), job(job_id).attempts) == ("READY", 0)
    wait_until(lambda: not group.members(), what="the end of all processes")


@finding("A6")
def test_the_lease_of_a_dead_child_ends_while_its_supervisor_stands_still(start, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = start(*OPTIONS)
    (first,) = starts(evidence)
    group.freeze(group.pid)
    os.kill(int(first[1]), signal.SIGKILL)
    let_run_out(job_id)
    wait_until(lambda: job(job_id).attempts == 1, what="its reaping")
    group.thaw(group.pid)
    assert starts(evidence, 2)[1][3:] == ["2", "2"]
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
