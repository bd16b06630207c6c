"""A worker's health over HTTP."""

from __future__ import annotations

import random
import socket
import urllib.error
import urllib.request
from contextlib import suppress

from tests.app import tasks
from tests.factories import state
from tests.marks import committed
from tests.patience import patient
from tests.proofs.running import wait_for

pytestmark = committed


def free_port():
    """Not one of those that the system gives to connections: it might be taken before the worker has it."""
    chance = random.SystemRandom()
    while True:
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port := chance.randrange(12_000, 32_000)))
            return port


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=patient(20)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_a_worker_tells_whether_it_lives_is_ready_and_what_it_has_done(run_worker):
    port = free_port()
    job_id = int(tasks.add.enqueue(1, 1).id)
    worker = run_worker("--probe-port", str(port))
    wait_for(lambda: get(port, "/ready")[0] == 200, 20, "readiness")
    wait_for(lambda: state(job_id) == "DONE", 20, "the job")
    assert get(port, "/live") == (200, "live\n")
    assert get(port, "/nonsense")[0] == 404

    def told():
        # Counted when the end has been written, and so a moment after it can be seen.
        status, text = get(port, "/metrics")
        return status == 501 or (status == 200 and "jobqueue_worker_jobs_ended_total 1.0" in text)

    wait_for(told, 20, "metrics")
    assert worker.stop() == 0
    assert get(port, "/live")[0] == 0


def test_a_port_that_is_taken_does_not_keep_the_worker_from_working(run_worker):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        job_id = int(tasks.add.enqueue(1, 1).id)
        worker = run_worker("--probe-port", str(taken.getsockname()[1]))
        wait_for(lambda: state(job_id) == "DONE", 20, "the job")
        # Another process of the worker says so.
        wait_for(lambda: "runs without probes" in worker.output(), 20, "the line about the port")
