"""A child writes its jobs to shared memory and keeps the interpreter meanwhile; the monitor reads them back whole."""

import sys
import threading
import time

import pytest

from jobqueue.worker.shared.scoreboard import RESULT_BYTES, TOKEN_BYTES, Hold, LeaseSlot

TOKEN = bytes([7, 0, 0, 9]) * (TOKEN_BYTES // 4)


def filled():
    slot = LeaseSlot()
    slot.fill(5, 2, TOKEN, lease_seconds=30, lease_until=99)
    return slot


def test_a_token_is_read_back_with_its_zero_bytes():
    slot = filled()
    assert (slot.job_id, slot.fence, slot.lock_token, Hold(slot.hold)) == (5, 2, TOKEN, Hold.WAITING)


@pytest.mark.parametrize("result", [None, "", "a\0b\0", "x" * RESULT_BYTES])
def test_a_result_is_read_back_as_it_was_kept(result):
    slot = filled()
    slot.keep_result("a longer one before it")
    slot.keep_result(result)
    assert (slot.kept_result(), Hold(slot.hold)) == (result, Hold.RETURNED)
    assert slot.lock_token == TOKEN


def test_a_result_without_room_is_not_kept():
    slot = filled()
    slot.keep_result("x" * (RESULT_BYTES + 1))
    assert Hold(slot.hold) is Hold.OVER


def test_of_a_failure_the_beginning_is_kept_up_to_a_whole_character():
    slot = filled()
    slot.keep_failure("x" + "é" * RESULT_BYTES, delay_seconds=None, final=True)
    assert slot.kept_failure() == "x" + "é" * ((RESULT_BYTES - 1) // 2)
    assert (slot.delay_seconds, slot.final, Hold(slot.hold)) == (-1.0, 1, Hold.FAILED)


@pytest.fixture
def turns():
    """A list that a second thread appends to whenever it gets the interpreter, which nobody has to give up."""
    found, over, interval = [], threading.Event(), sys.getswitchinterval()

    def take_turns():
        while not over.is_set():
            found.append(1)
            time.sleep(0)

    thread = threading.Thread(target=take_turns)
    sys.setswitchinterval(600)
    try:
        thread.start()
        yield found
    finally:
        over.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_a_thread_keeps_the_interpreter_while_it_writes(turns):
    # ctypes.memmove() gives it up: each job then cost two switches, and all jobs 17 to 25 % of the speed.
    slot = LeaseSlot()
    before = len(turns)
    for _ in range(1000):
        slot.fill(5, 2, TOKEN, lease_seconds=30, lease_until=99)
        slot.keep_result('{"rows": 3}')
        slot.keep_failure("ValueError: no", delay_seconds=3.0, final=False)
    assert len(turns) == before
