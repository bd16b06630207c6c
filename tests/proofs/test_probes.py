"""A worker's health over HTTP."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

from tests.app import tasks
from tests.factories import state
from tests.marks import committed
from tests.proofs.running import wait_for

pytestmark = [committed]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
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
    status, text = wait_for(lambda: (a := get(port, "/metrics"))[0] in (200, 501) and a, 5, "metrics")
    assert status == 501 or "jobqueue_worker_jobs_ended 1.0" in text
    assert worker.stop() == 0
    assert get(port, "/live")[0] == 0


def test_a_port_that_is_taken_does_not_keep_the_worker_from_working(run_worker):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        job_id = int(tasks.add.enqueue(1, 1).id)
        worker = run_worker("--probe-port", str(taken.getsockname()[1]))
        wait_for(lambda: state(job_id) == "DONE", 20, "the job")
        assert "runs without probes" in worker.output()
