"""Signals are delivered, in a thread or without one."""

from jobqueue.worker.shared.signal_thread import Announcer
from tests.patience import patient


def test_deliveries_are_called_in_order_by_the_end():
    announcer, heard = Announcer(), []
    announcer.start()
    for number in range(50):
        announcer.give(lambda number=number: heard.append(number))
    announcer.end(patient(30))
    assert heard == list(range(50))


def test_without_room_for_a_thread_a_delivery_is_called_at_once(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    announcer, heard = Announcer(), []
    with monkeypatch.context() as full:
        full.setattr("threading.Thread.start", refuse)
        announcer.give(lambda: heard.append("at once"))
    assert heard == ["at once"]
    announcer.give(lambda: heard.append("later"))
    announcer.end(patient(30))
    assert heard == ["at once", "later"]
