"""A second thread for half of the work."""

import threading

import pytest

from jobqueue.worker.child import settler
from jobqueue.worker.child.settler import HelperThread
from tests.patience import patient


@pytest.fixture
def hand():
    return HelperThread("helper", "default")


def test_work_is_done_beside_ones_own(hand):
    met = threading.Barrier(2, timeout=patient())
    assert hand.begin(lambda: (met.wait() and "a") or "b")
    met.wait()
    assert hand.end() in ("a", "b")


def test_one_thread_does_all_that_it_is_given(hand):
    names = set()
    for _ in range(3):
        hand.begin(lambda: names.add(threading.current_thread().ident))
        hand.end()
    assert len(names) == 1
    assert threading.get_ident() not in names


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_work_that_raises_gives_none_and_the_next_is_done(hand, error):
    def fail():
        raise error("no")

    hand.begin(fail)
    assert hand.end() is None
    hand.begin(lambda: 7)
    assert hand.end() == 7


def test_without_room_for_a_thread_it_says_so_and_is_asked_again(hand, monkeypatch):
    def full(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        assert not hand.begin(lambda: 1)
    assert hand.begin(lambda: 2)
    assert hand.end() == 2


def test_a_log_handler_that_raises_does_not_keep_others_waiting(hand, monkeypatch):
    def refuse(*_):
        raise ValueError("closed")

    monkeypatch.setattr(settler.logger, "exception", refuse)
    hand.begin(lambda: 1 / 0)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(hand.end()), daemon=True)
    thread.start()
    thread.join(patient())
    assert ended == [None]
