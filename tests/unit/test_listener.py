"""The monitor's thread that receives wake-ups."""

import itertools
import threading

import pytest

from jobqueue.worker.monitor import monitor
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.worker_options import Options
from tests.patience import patient


class Deaf:
    """A messenger whose sessions end before anything was heard, and wake-up pipes that count who is woken."""

    def __init__(self):
        self.listened, self.notified, self.thrice = itertools.count(1), 0, threading.Event()

    def subscribe(self):
        if next(self.listened) > 3:
            self.thrice.set()
            threading.Event().wait()
        return self

    def receive(self, seconds):
        raise ConnectionError("the session was ended")

    def close(self):
        """Nothing to close."""

    def wake(self):
        self.notified += 1


@pytest.fixture
def deaf(monkeypatch):
    found = Deaf()
    monkeypatch.setattr(monitor, "URGENT_SECONDS", 0.0)
    monkeypatch.setattr(monitor.wakeup, "notifier_of", lambda using: found)
    return found


def test_who_begins_to_listen_looks_once_for_what_was_rung_before(deaf):
    monitor.Listener(Options(Selection(), "default"), deaf).start()
    assert deaf.thrice.wait(patient())
    assert deaf.notified == 3
