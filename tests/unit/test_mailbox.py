"""What the threads of a worker hand to each other."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from jobqueue.worker.run.pool import Mailbox
from tests.patience import patient

#: the end of which no test sees
NEVER_SECONDS = 60_000
STORM = """
import os, signal, time
while os.getppid() == {pid}:
    os.kill({pid}, signal.SIGUSR2)
    time.sleep(0.0003)
"""


@pytest.fixture
def storm():
    """Signals to this process, thousands a second; each of them is in the list."""
    seen = []
    before = signal.signal(signal.SIGUSR2, lambda *_: seen.append(1))
    process = subprocess.Popen([sys.executable, "-c", STORM.format(pid=os.getpid())])
    yield seen
    process.kill()
    process.wait()
    signal.signal(signal.SIGUSR2, before)


def test_signals_do_not_make_a_short_wait_endless(storm):
    mailbox = Mailbox()
    rescue = threading.Timer(patient(), mailbox.put, ["too late"])
    rescue.start()
    try:
        while len(storm) < 3000:
            assert mailbox.take(0.0004) == []
    finally:
        rescue.cancel()


def test_what_a_thread_puts_ends_the_wait_at_once():
    mailbox = Mailbox()
    threading.Timer(0.05, mailbox.put, ["job"]).start()
    assert mailbox.take(NEVER_SECONDS) == ["job"]


def test_everything_arrives_in_order_whoever_puts_and_whenever():
    mailbox, found = Mailbox(), []

    def put(name):
        for number in range(2000):
            mailbox.put((name, number))

    threads = [threading.Thread(target=put, args=[name]) for name in "abc"]
    for thread in threads:
        thread.start()
    while len(found) < 6000 and (more := mailbox.take(patient())):
        found += more
    for thread in threads:
        thread.join()
    assert [[number for by, number in found if by == name] for name in "abc"] == [list(range(2000))] * 3


def test_what_a_signal_handler_puts_ends_the_wait():
    mailbox = Mailbox()
    before = signal.signal(signal.SIGUSR2, lambda *_: mailbox.put("signal"))
    try:
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR2]).start()
        assert mailbox.take(NEVER_SECONDS) == ["signal"]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_nothing_comes_after_the_time_is_over():
    assert (Mailbox().take(0), Mailbox().take(0.01)) == ([], [])
