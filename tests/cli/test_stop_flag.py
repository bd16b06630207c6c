"""The flag with which SIGTERM ends a command that runs until it is stopped."""

import subprocess
import sys
import threading

from jobqueue.cli.process import StopFlag
from tests.docs.markdown import ROOT
from tests.patience import patient

# The signal arrives before the first line of wait() and of what it calls, then before the second one, and so on.
EACH_LINE = """
import itertools, signal, sys
from jobqueue.cli.process import StopFlag

def wait(stop, number):
    left = [number]

    def trace(frame, event, argument):
        left[0] -= 1
        if not left[0]:
            signal.raise_signal(signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        stop.wait(0.001)
    finally:
        sys.settrace(None)
    return left[0]

for number in itertools.count(1):
    stop = StopFlag()
    stop.catch_signals()
    if wait(stop, number) > 0:
        break
    assert stop.is_set()
    assert stop.wait(60)
print(number)
"""


def test_a_signal_may_interrupt_a_wait_at_any_line():
    done = subprocess.run(
        [sys.executable, "-c", EACH_LINE], cwd=ROOT, capture_output=True, text=True, timeout=patient(), check=True
    )
    assert int(done.stdout) > 3


def test_it_ends_the_waits_of_all_threads():
    stop, ended = StopFlag(), []
    threads = [threading.Thread(target=lambda: ended.append(stop.wait(patient()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join()
    assert ended == [True] * 3


def test_a_wait_ends_without_a_signal_too():
    assert not StopFlag().wait(0)
