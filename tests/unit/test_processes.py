"""What a process is between fork() and its own first line."""

import os
import signal
import subprocess
import sys

import pytest

from jobqueue.worker.shared.processes import Forker
from tests.patience import patient

HANDLERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)


@pytest.fixture
def answered(tmp_path):
    """Handlers as the supervisor has them: each call leaves the id of the process that answered."""
    path = tmp_path / "answered"
    path.write_text("")

    def answer(number, frame):
        with path.open("a") as handle:
            handle.write(f"{os.getpid()}\n")

    before = {number: signal.signal(number, answer) for number in HANDLERS}
    yield path
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", HANDLERS)
def test_a_new_process_never_answers_a_signal_in_the_supervisors_name(answered, monkeypatch, number):
    fork = os.fork

    def struck():
        pid = fork()
        if not pid:
            os.kill(os.getpid(), number)
        return pid

    monkeypatch.setattr(os, "fork", struck)
    pid = Forker().fork(lambda: 7)
    _, status = os.waitpid(pid, 0)
    ignored = number in (signal.SIGHUP, signal.SIGUSR1)
    assert os.waitstatus_to_exitcode(status) == (7 if ignored else -number)
    assert answered.read_text() == ""


ALONE = """
import os, signal
from jobqueue.worker.shared.processes import Forker

def answer(number, frame):
    print(os.getpid(), flush=True)

def struck():
    os.kill(os.getpid(), signal.SIGHUP)
    return fork()

signal.signal(signal.SIGHUP, answer)
fork, os.fork = os.fork, struck
os.waitpid(Forker().fork(lambda: 0), 0)
"""


def test_the_supervisor_answers_what_came_while_it_forked():
    # In a process without threads, as the supervisor is: any other thread of this one might take the signal.
    process = subprocess.Popen([sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True)
    answers, _ = process.communicate(timeout=patient())
    assert answers.split() == [str(process.pid)]


class Full:
    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [Full(), None])
def test_a_stream_that_cannot_be_written_keeps_no_process_from_starting(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    pid = Forker().fork(lambda: 3)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 3
