"""What a worker says at its start, when it is to stop, and at its end."""

import logging
import os
import signal
import time
from types import SimpleNamespace

import pytest

from jobqueue.tasks import registry
from jobqueue.worker.child import loop as loop_module
from jobqueue.worker.child import process
from jobqueue.worker.child.loop import STILL_FIRST_SECONDS, STILL_SECONDS, Loop
from jobqueue.worker.monitor import monitor
from jobqueue.worker.monitor.recovery import _jobs
from jobqueue.worker.run import attempt
from jobqueue.worker.run.attempt import Attempt
from jobqueue.worker.shared.queue_choice import parse
from jobqueue.worker.shared.scoreboard import Hold, Scoreboard, Stop
from jobqueue.worker.shared.worker_options import Options
from jobqueue.worker.supervisor import Supervisor


def options(*words, **more):
    return Options(parse(words), "default", **more)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (options(), "1 process x 4 threads, all queues; waiting for jobs, Ctrl-C stops"),
        (
            options("mail", processes=2, concurrency=1),
            "2 processes x 1 thread, queue mail; waiting for jobs, Ctrl-C stops",
        ),
        (options("a", "b", drain=True), "1 process x 4 threads, queues a, b; runs what is due, then ends"),
        (options(once=True), "1 process x 4 threads, all queues; runs one job, then ends"),
    ],
)
def test_the_start_says_the_size_the_queues_and_the_end(monkeypatch, made, said):
    monkeypatch.setattr(registry, "knows_coroutines", lambda: False)
    assert process._readiness(made) == said
    monkeypatch.setattr(registry, "knows_coroutines", lambda: True)
    assert " and 100 coroutines, " in process._readiness(made)


@pytest.fixture
def supervisor():
    """Makes a supervisor that starts nothing."""
    made = []

    def make(found):
        made.append(Supervisor(found))
        return made[-1]

    yield make
    for one in made:
        one.log_writer.leave()
        for end in (one._wake_read, one._wake_write):
            os.close(end)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((0, 0, 0), "no job was run"),
        ((1, 0, 0), "1 run ended"),
        ((5, 2, 0), "5 runs ended, 2 of them failed"),
        ((5, 1, 1), "5 runs ended, 1 of them failed, 1 had lost their lease"),
    ],
)
def test_the_end_says_what_was_done_by_all_processes(supervisor, counts, said):
    found = supervisor(options(processes=2))
    first, second, _alone = found.scoreboard.slots
    first.finished, second.failed, first.lost = counts
    assert found._totals().partition(": ")[2] == said


@pytest.mark.parametrize(
    ("running", "number", "more", "said"),
    [
        (0, signal.SIGINT, {}, "no job runs"),
        (1, signal.SIGINT, {}, "waiting up to 30s for 1 job, Ctrl-C again ends it now"),
        (
            3,
            signal.SIGTERM,
            {"shutdown_seconds": 9.0},
            "waiting up to 9s for 3 jobs, a second signal ends them now",
        ),
        (3, signal.SIGTERM, {"on_timeout": "wait"}, "waiting for 3 jobs, a second signal ends them now"),
    ],
)
def test_a_stop_says_how_many_jobs_it_waits_for_and_how_long(supervisor, running, number, more, said):
    found = supervisor(options(**more))
    for slot in found.scoreboard.lease_slots[0][:running]:
        slot.hold = Hold.RUNNING
    assert found._what_it_waits_for(number) == said


@pytest.fixture
def loop(monkeypatch):
    """The loop of a child whose worker stops, in which two jobs run."""
    monkeypatch.setattr(attempt, "running", running := set())
    monkeypatch.setattr("jobqueue.worker.child.loop.running", running)
    for job_id, name in ((5, "shop.tasks.slow"), (6, None)):
        lease = SimpleNamespace(job_id=job_id, queue="reports", task=name, attempt=1, max_attempts=2)
        found = Attempt(lease, lambda: False)
        found.begun -= 12.0 - job_id
        found.begin()
    made = Loop.__new__(Loop)
    made.child = SimpleNamespace(label="", header=SimpleNamespace(stop=Stop.DRAIN))
    made._name_at = 0.0
    return made


def test_a_stop_names_the_jobs_that_it_waits_for_soon_and_then_now_and_again(loop, told, monkeypatch):
    found, clock = told(loop_module), [time.monotonic()]
    monkeypatch.setattr("jobqueue.worker.child.loop.time", SimpleNamespace(monotonic=lambda: clock[0]))
    said = []
    for seconds in (0.0, 0.1, STILL_FIRST_SECONDS, 1.0, STILL_SECONDS):
        clock[0] += seconds
        found.clear()
        loop._name_running()
        said.append([text for _, text in found])
    assert said[:2] == [[], []]
    assert [text.rpartition(",")[0] for text in said[2]] == [
        "still runs: reports  shop.tasks.slow  #5",
        "still runs: reports  handler  #6",
    ]
    assert [len(texts) for texts in said] == [0, 0, 2, 0, 2]


def test_a_child_that_is_replaced_names_no_jobs(loop, told):
    found = told(loop_module)
    loop.child.header.stop = Stop.RUN
    for _ in range(3):
        loop._name_running()
    assert not found


@pytest.fixture
def told(monkeypatch):
    """Collects the debug lines of a module, whatever other tests have set on its loggers."""
    found = []

    def begin(module):
        for name in ("logger", "detail"):
            if hasattr(module, name):
                own = logging.Logger(getattr(module, name).name, logging.DEBUG)
                own.addFilter(lambda record: found.append((record.name, record.getMessage())))
                monkeypatch.setattr(module, name, own)
        return found

    return begin


def test_a_renewal_and_its_absence_are_told_in_debug_lines(told, monkeypatch):
    found = told(monitor)
    made = monitor.Monitor(options(), Scoreboard(1, 1))
    monkeypatch.setattr(made, "_living", lambda: [(0, "w")])
    monkeypatch.setattr(monitor, "ping", lambda connection: None)
    monkeypatch.setattr(monitor, "renew_in_hand", lambda leases, **_: {})
    made.renew()
    made.scoreboard.lease_slots[0][0].fill(1, 1, b"t", lease_seconds=60.0, lease_until=0.0)
    made.renew()
    assert found == [
        ("jobqueue.detail", "no lease to renew; the database answers"),
        ("jobqueue.worker", "renewed 1 lease"),
    ]


def test_a_wake_up_is_told_with_its_queues(told):
    class Heard(Exception):
        """Ends the listener."""

    found, answers = told(monitor), [["mail", "other", "mail"]]

    def receive(seconds):
        if not answers:
            raise Heard
        return answers.pop()

    pipes = SimpleNamespace(wake=lambda: None, wake_another=lambda: None)
    with pytest.raises(Heard):
        monitor.Listener(options("mail"), pipes)._listen(SimpleNamespace(receive=receive))
    assert found == [("jobqueue.worker", "wake-up: a job was committed to mail")]


def test_what_became_of_the_jobs_of_a_dead_child_leaves_out_what_did_not_happen():
    assert _jobs(0, 0, 1, 3) == "1 job charged with an attempt, 3 jobs given back without using an attempt"
    assert _jobs(2, 1, 0, 0) == "2 jobs had returned, 1 job had failed"
