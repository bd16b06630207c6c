"""Workers in odd surroundings: closed streams, signals to the whole group, a supervisor that dies early."""

import os
import signal
import socket
from datetime import timedelta

import pytest

from jobqueue.models import Job, JobAttempt
from tests.app import tasks
from tests.factories import job, state
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.process.harness import SHORT, command
from tests.process.probe import monitor_of
from tests.settings import VENDOR

pytestmark = committed


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_worker_whose_streams_are_closed_works(db_job, evidence, closed):
    prefix = ("sh", "-c", f'exec "$@" {closed}', "sh")
    group = command("runworker", *SHORT, "--drain", evidence=evidence, prefix=prefix)
    try:
        assert group.wait() == 0
    finally:
        group.end()
    assert state(db_job) == "DONE"


def test_a_job_that_closes_the_streams_costs_log_lines_and_nothing_else(worker, evidence):
    closing = tasks.closes_its_streams.enqueue().id
    group = worker("--concurrency", 1)
    wait_until(lambda: state(closing) == "DONE", what="the end of the job")
    after = [tasks.add.enqueue(n, 0).id for n in range(5)] + [tasks.boom.using(max_attempts=1).enqueue().id]
    wait_until(lambda: {state(i) for i in after} == {"DONE", "FAILED"}, what="the jobs after it")
    wait_until(lambda: not Job.objects.leased().exists())
    assert len({line[1] for line in evidence.read()}) == 1, "a child process died"
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


@pytest.fixture
def db_job(transactional_db):
    """A job that leaves evidence."""
    return tasks.add.enqueue(1, 2).id


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_a_signal_for_the_supervisor_that_reaches_the_whole_group_charges_nothing(worker, evidence, tmp_path, number):
    gate = tmp_path / "gate"
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker()
    wait_until(lambda: evidence.read("start"), what="the start")
    group.signal_all(number)
    after = tasks.add.using(priority=1).enqueue(1, 2).id
    if number != signal.SIGHUP:
        wait_until(lambda: state(after) == "DONE", what="a later job")
    gate.touch()
    wait_until(lambda: {state(job_id), state(after)} == {"DONE"}, what="the end of both")
    assert (job(job_id).attempts, job(job_id).fence, JobAttempt.objects.count()) == (0, 1, 0)
    assert "unexpectedly" not in group.text()


def test_children_of_a_supervisor_that_died_while_they_started_do_not_stay(worker, tmp_path):
    gate, reached = tmp_path / "import", tmp_path / "import.reached"
    group = worker(JOBQUEUE_TEST_IMPORT_GATE=str(gate))
    wait_until(reached.exists, what="the import")
    os.kill(group.pid, signal.SIGKILL)
    group.wait()
    gate.touch()
    wait_until(lambda: not group.members(), what="the end of its processes")


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server that could be silent")
def test_a_database_that_is_silent_at_the_start_does_not_keep_sigterm_waiting(worker):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scheme = "postgres" if VENDOR == "postgresql" else VENDOR.replace("mariadb", "mysql")
        url = f"{scheme}://u:p@127.0.0.1:{silent.getsockname()[1]}/x"
        group = worker(**{f"JOBQUEUE_TEST_{VENDOR.upper()}_URL": url})
        silent.settimeout(patient())
        conversation, _ = silent.accept()
        group.signal(signal.SIGTERM)
        assert group.wait() == 0
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()  # it has left without another try: so it did not wait for the end of the first one
        conversation.close()


def test_what_one_job_activates_does_not_reach_the_next(worker):
    for _ in range(3):
        tasks.activates.enqueue()
    assert worker("--drain", "--concurrency", 1).wait() == 0
    first, *others = Job.objects.order_by("pk").values_list("result", flat=True)
    assert others == [first, first]


@finding("R-F5")
def test_a_program_that_a_job_starts_can_be_stopped_as_by_ctrl_c(worker):
    job_id = tasks.interrupts_a_program.enqueue().id
    assert worker("--drain").wait() == 0
    # A Python program that ends by KeyboardInterrupt ends by the signal.
    assert (state(job_id), job(job_id).result) == ("DONE", -signal.SIGINT)


def test_a_finish_that_is_rolled_back_by_the_jobs_own_transaction_is_no_success(worker):
    job_id = tasks.finishes_and_rolls_back.enqueue().id
    group = worker("--drain")
    assert group.wait() == 0
    assert (state(job_id), job(job_id).attempts, job(job_id).cause) == ("FAILED", 1, "data")


def test_a_job_that_hangs_does_not_outlive_a_killed_supervisor_for_longer_than_the_shutdown_timeout(worker, evidence):
    job_id = tasks.sleep.enqueue(600).id
    group = worker("--shutdown-timeout", "1s")
    wait_until(lambda: evidence.read("start"), what="the start")
    os.kill(group.pid, signal.SIGKILL)
    group.wait()
    wait_until(lambda: not group.members(), what="the end of its processes")
    assert (state(job_id), job(job_id).attempts) == ("READY", 0)


def test_a_monitor_that_is_frozen_is_replaced_before_the_leases_run_out(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker()
    (line,) = wait_until(lambda: evidence.read("start"), what="the start")
    monitor = monitor_of(group, int(line[1]))
    before = job(job_id).lock_until
    # Wherever it is: with its process the server ends its transaction.
    os.kill(monitor, signal.SIGSTOP)
    wait_until(
        lambda: (job(job_id).lock_until or before) > before + timedelta(seconds=2), what="two seconds of renewals"
    )
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
    assert (job(job_id).attempts, job(job_id).fence) == (0, 1)


def test_a_slow_receiver_in_the_monitor_costs_no_lease(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    job_id = tasks.gated.enqueue(str(gate)).id
    slow, reached = tmp_path / "slow", tmp_path / "slow.reached"
    worker("--processes", 2, "--concurrency", 1, JOBQUEUE_TEST_RECEIVER_GATE=str(slow))
    wait_until(lambda: evidence.read("start"), what="the start")
    dead = tasks.die.using(max_attempts=1).enqueue().id
    wait_until(lambda: state(dead) == "FAILED", what="the death of a neighbour")
    before = job(job_id).lock_until
    wait_until(reached.exists, what="the receiver")
    wait_until(lambda: (job(job_id).lock_until or before) > before + timedelta(seconds=2), what="renewals meanwhile")
    slow.touch()
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
    assert (job(job_id).attempts, job(job_id).fence) == (0, 1)
