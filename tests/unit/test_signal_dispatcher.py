"""Signals are delivered, in a thread or without one."""

from jobqueue.worker.shared.signal_dispatcher import SignalDispatcher
from tests.patience import patient


def test_deliveries_are_called_in_order_by_the_end():
    dispatcher, heard = SignalDispatcher(), []
    dispatcher.start()
    for number in range(50):
        dispatcher.dispatch(lambda number=number: heard.append(number))
    dispatcher.end(patient())
    assert heard == list(range(50))


def test_without_room_for_a_thread_a_delivery_is_called_at_once(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    dispatcher, heard = SignalDispatcher(), []
    with monkeypatch.context() as full:
        full.setattr("threading.Thread.start", refuse)
        dispatcher.dispatch(lambda: heard.append("at once"))
    assert heard == ["at once"]
    dispatcher.dispatch(lambda: heard.append("later"))
    dispatcher.end(patient())
    assert heard == ["at once", "later"]
