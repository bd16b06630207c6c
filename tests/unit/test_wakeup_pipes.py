"""Which child a wake-up reaches."""

import os
import threading
import time

import pytest

from jobqueue.worker.shared import wakeup_pipes
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.patience import patient


@pytest.fixture
def scoreboard(monkeypatch):
    """Three children; a child may be woken again at once."""
    monkeypatch.setattr(wakeup_pipes, "AGAIN_SECONDS", 0.0)
    made = Scoreboard(3, 4)
    yield made
    for _, write in made.wakeups._pipes:
        os.close(write)
    # A thread that still watches must see the end, not the next test's pipe under the same number.
    for thread in threading.enumerate():
        if thread.name == "wakeup":
            thread.join(patient())
    for read, _ in made.wakeups._pipes:
        os.close(read)


def rooms(scoreboard, *values):
    for slot, value in zip(scoreboard.slots, values, strict=True):
        slot.room = value


def woken(scoreboard):
    """Which children have a wake-up waiting; it is taken."""
    found = []
    for index, (read, _) in enumerate(scoreboard.wakeups._pipes):
        os.set_blocking(read, False)
        try:
            os.read(read, 4096)
        except BlockingIOError:
            continue
        found.append(index)
    return found


@pytest.mark.parametrize(
    ("room", "first", "expected"),
    [
        ((4, 4, 4), None, [0]),
        ((1, 4, 4), None, [1]),
        ((0, 0, 1), None, [2]),
        ((0, 0, 0), None, []),
        ((1, 4, 4), 0, [0]),
        ((0, 4, 4), 0, [1]),
        ((0, 0, 0), 0, []),
    ],
)
def test_one_child_is_woken_the_asked_one_or_the_one_with_most_room(scoreboard, room, first, expected):
    rooms(scoreboard, *room)
    scoreboard.wakeups.wake(first=first)
    assert woken(scoreboard) == expected


def test_a_frozen_child_is_not_woken(scoreboard):
    rooms(scoreboard, 4, 4, 4)
    scoreboard.slots[0].paused = 1
    scoreboard.wakeups.wake()
    assert woken(scoreboard) == [1]


def test_another_one_is_woken_the_second_time(scoreboard):
    rooms(scoreboard, 4, 4, 4)
    scoreboard.wakeups.wake()
    scoreboard.wakeups.wake_another()
    assert woken(scoreboard) == [0, 1]
    rooms(scoreboard, 4, 0, 0)
    scoreboard.wakeups.wake()
    scoreboard.wakeups.wake_another()
    assert woken(scoreboard) == [0]


def test_a_child_that_may_pause_for_long_is_woken_again_however_soon(scoreboard, monkeypatch):
    """It may have looked since, before the job of this wake-up was there."""
    monkeypatch.setattr(wakeup_pipes, "AGAIN_SECONDS", 600.0)
    rooms(scoreboard, 4, 0, 0)
    for _ in range(3):
        scoreboard.wakeups.wake()
        assert woken(scoreboard) == [0]


def test_a_child_that_was_just_woken_and_looks_often_is_left_alone(scoreboard, monkeypatch):
    monkeypatch.setattr(wakeup_pipes, "AGAIN_SECONDS", 600.0)
    rooms(scoreboard, 4, 4, 0)
    for slot in scoreboard.slots:
        slot.hot = 1
    begun = time.monotonic()
    for _ in range(5):
        scoreboard.wakeups.wake()
    assert woken(scoreboard) == [0, 1]
    assert scoreboard.wakeups._woken_at[0] >= begun


def test_rings_for_a_child_that_never_reads_do_not_block(scoreboard):
    rooms(scoreboard, 4, 0, 0)
    for _ in range(100_000):
        scoreboard.wakeups.wake()
    assert woken(scoreboard) == [0]


def test_a_child_hears_every_ring_after_the_last_wait(scoreboard):
    heard = threading.Semaphore(0)
    scoreboard.wakeups.watch(2, heard.release)
    rooms(scoreboard, 0, 0, 4)
    for _ in range(3):
        scoreboard.wakeups.wake()
        assert heard.acquire(timeout=patient())
