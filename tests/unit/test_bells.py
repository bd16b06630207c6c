"""Which child a ring wakes."""

import os
import threading
import time

import pytest

from jobqueue.worker.shared import wakeup_pipes as bells
from jobqueue.worker.shared.scoreboard import Board
from tests.patience import patient


@pytest.fixture
def board(monkeypatch):
    """Three children; a child may be woken again at once."""
    monkeypatch.setattr(bells, "AGAIN_SECONDS", 0.0)
    made = Board(3, 4)
    yield made
    for _, write in made.bells._pipes:
        os.close(write)
    # A thread that still watches must see the end, not the next test's pipe under the same number.
    for thread in threading.enumerate():
        if thread.name == "bell":
            thread.join(patient(10))
    for read, _ in made.bells._pipes:
        os.close(read)


def rooms(board, *values):
    for region, value in zip(board.regions, values, strict=True):
        region.room = value


def woken(board):
    """Which children have a ring waiting; it is taken."""
    found = []
    for index, (read, _) in enumerate(board.bells._pipes):
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
def test_one_child_is_woken_the_asked_one_or_the_one_with_most_room(board, room, first, expected):
    rooms(board, *room)
    board.bells.ring(first=first)
    assert woken(board) == expected


def test_a_frozen_child_is_not_woken(board):
    rooms(board, 4, 4, 4)
    board.regions[0].paused = 1
    board.bells.ring()
    assert woken(board) == [1]


def test_another_one_is_woken_the_second_time(board):
    rooms(board, 4, 4, 4)
    board.bells.ring()
    board.bells.ring_another()
    assert woken(board) == [0, 1]
    rooms(board, 4, 0, 0)
    board.bells.ring()
    board.bells.ring_another()
    assert woken(board) == [0]


def test_a_child_that_was_just_woken_is_left_alone(board, monkeypatch):
    monkeypatch.setattr(bells, "AGAIN_SECONDS", 600.0)
    rooms(board, 4, 4, 0)
    for _ in range(5):
        board.bells.ring()
    assert woken(board) == [0, 1]
    assert time.monotonic() - board.bells._rung_at[0] < 600


def test_rings_for_a_child_that_never_reads_do_not_block(board):
    rooms(board, 4, 0, 0)
    for _ in range(100_000):
        board.bells.ring()
    assert woken(board) == [0]


def test_a_child_hears_every_ring_after_the_last_wait(board):
    heard = threading.Semaphore(0)
    board.bells.watch(2, heard.release)
    rooms(board, 0, 0, 4)
    for _ in range(3):
        board.bells.ring()
        assert heard.acquire(timeout=patient(10))
