"""A worker tells where its threads are when somebody asks through the database, within seconds and without values."""

import json
import os
import signal

from jobqueue.maintenance import worker_rows
from jobqueue.models import Worker
from jobqueue.worker.shared.scoreboard import ANSWER_BYTES
from tests.app import tasks
from tests.factories import job
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import LONG

pytestmark = committed
SECRET = "4f9c-the-card-number"


def running(job_id):
    """The name of the worker that runs this job."""
    wait_until(lambda: job(job_id).locked_by, what="the claim")
    return job(job_id).locked_by


def told(name):
    """What the worker answers now."""
    worker_rows.ask_stacks([name], using="default")
    wait_until(lambda: not worker_rows.stacks_asked([name], using="default"), what="the answer")
    (answer,) = worker_rows.stacks_of([name], 60, using="default")
    return answer.content


def place_of(content, job_id):
    """Where a job is."""
    (place,) = [one for one in content["places"] if int(job_id) in [pair[0] for pair in one["jobs"]]]
    return place


def ends(group, gate):
    gate.touch()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_the_stack_of_a_job_has_its_line_and_no_argument_of_it(worker, evidence, tmp_path):
    gate = tmp_path / SECRET
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker(*LONG)
    wait_until(lambda: evidence.read("start"), what="the job")
    name = running(job_id)
    content = told(name)
    place = place_of(content, job_id)
    assert place["jobs"] == [[int(job_id), job(job_id).fence]]
    assert place["stack"][-1].startswith("tests/app/tasks.py:")
    assert place["stack"][-1].endswith(" gated")
    assert place["looks"] >= 1
    text = json.dumps(content)
    assert SECRET not in text
    assert str(tmp_path) not in text
    assert len(text) <= ANSWER_BYTES
    ends(group, gate)


def test_a_stack_that_does_not_change_is_known_for_longer_at_each_request(worker, tmp_path):
    job_id = tasks.sleep.enqueue(600).id
    group = worker(*LONG)
    name = running(job_id)
    wait_until(lambda: place_of(told(name), job_id)["stack"][-1].endswith(" sleep"), what="its sleep")
    first, second = (place_of(told(name), job_id) for _ in range(2))
    assert second["unchanged_seconds"] > first["unchanged_seconds"] > 0.4
    assert second["looks"] > first["looks"] >= 2
    group.signal_all(signal.SIGKILL)


def test_a_coroutine_is_told_with_what_it_awaits(worker):
    job_id = tasks.sleeps_as_a_coroutine.enqueue(600).id
    group = worker(*LONG)
    name = running(job_id)
    wait_until(lambda: "sleeps_as_a_coroutine" in str(place_of(told(name), job_id)["stack"]), what="its await")
    place = place_of(told(name), job_id)
    assert "asyncio/tasks.py" in place["stack"][-1]
    assert place["looks"] >= 2
    group.signal_all(signal.SIGKILL)


def test_a_process_that_executes_no_python_code_is_said_not_to_answer(worker, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    job_id = tasks.hold_the_gil.enqueue(str(fifo)).id
    group = worker(*LONG, JOBQUEUE_TEST_ANSWER_SECONDS="600")
    name = running(job_id)
    wait_until(lambda: told(name) == {"answered": False}, what="no answer")
    group.signal_all(signal.SIGKILL)


def test_nothing_is_written_without_a_request(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    tasks.gated.enqueue(str(gate))
    group = worker(*LONG)
    wait_until(lambda: evidence.read("start"), what="the job")
    before = Worker.objects.get().heartbeat_at
    wait_until(lambda: Worker.objects.get().heartbeat_at > before, what="a heartbeat")
    assert Worker.objects.values_list("stacks", "stacks_at", "stacks_asked_at").get() == (None, None, None)
    ends(group, gate)


def test_each_process_answers_for_itself(worker, evidence, tmp_path):
    gate, number = tmp_path / "gate", 2
    ids = {tasks.gated.enqueue(str(gate)).id for _ in range(number)}
    group = worker(*LONG, "--processes", number, "--concurrency", 1)
    wait_until(lambda: len(evidence.read("start")) == number, what="the jobs")
    names = {running(job_id): job_id for job_id in ids}
    assert len(names) == number
    worker_rows.ask_stacks([*names], using="default")
    wait_until(lambda: not worker_rows.stacks_asked([*names], using="default"), what="the answers")
    for answer in worker_rows.stacks_of([*names], 60, using="default"):
        assert place_of(answer.content, names[answer.worker])
    ends(group, gate)
