"""SIGQUIT prints what all threads do, and harms none of them."""

import signal
import subprocess
import sys
import time

import pytest

from tests.patience import wait_until

BUSY = """
import json, threading, time
from jobqueue.worker.shared.processes import print_at_sigquit
print_at_sigquit()
def deep(n):
    return n and deep(n - 1)
def busy():
    while True:
        deep(50)
        threading.Thread(target=deep, args=[9]).start()
        json.dumps([n for n in range(5)])
        time.sleep(0.0001)
for _ in range(4):
    threading.Thread(target=busy, daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""

IN_C = """
import sqlite3
from jobqueue.worker.shared.processes import print_at_sigquit
print_at_sigquit()
def waits_in_c():
    counting = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
    sqlite3.connect(":memory:").execute(counting)
print("ready", flush=True)
waits_in_c()
"""


@pytest.fixture
def start(tmp_path):
    """Start a program and wait until it is ready; its stderr goes to the file beside it."""
    started = []

    def run(program):
        sink = (tmp_path / "stderr").open("w+")
        argv = [sys.executable, "-c", program]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=sink)
        started.append((process, sink))
        assert process.stdout.readline() == b"ready\n"
        return process, tmp_path / "stderr"

    yield run
    for process, sink in started:
        process.kill()
        process.wait()
        process.stdout.close()
        sink.close()


def test_stacks_can_be_asked_for_again_and_again_while_threads_work(start):
    process, stderr = start(BUSY)
    for _ in range(1500):
        process.send_signal(signal.SIGQUIT)
        time.sleep(0.001)
    wait_until(lambda: "in busy" in stderr.read_text(), what="an answer")
    assert process.poll() is None


def test_a_main_thread_that_waits_in_c_shows_where(start):
    process, stderr = start(IN_C)

    # The process is ready shortly before it waits. A request in between is refused, so ask again.
    wait_until(lambda: "in waits_in_c" in stderr.read_text() or process.send_signal(signal.SIGQUIT), what="an answer")
