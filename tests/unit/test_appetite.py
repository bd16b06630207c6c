"""How many jobs a queue is asked for."""

from __future__ import annotations

import pytest

from jobqueue.worker.child import demand as appetites
from jobqueue.worker.child.demand import Appetite


@pytest.fixture(autouse=True)
def looked(monkeypatch):
    """No second look before the test has ended."""
    monkeypatch.setattr(appetites, "LOOK_SECONDS", 60.0)


def test_an_unknown_queue_is_asked_for_what_the_threads_can_take():
    assert Appetite().ask("q", room=4, places=100) == 4


def test_an_unknown_queue_is_tried_with_one_job_while_all_threads_are_busy():
    appetite = Appetite()
    assert appetite.ask("q", room=-3, places=0) == 0
    assert appetite.ask("q", room=0, places=100) == 1
    assert appetite.ask("another", room=0, places=100) == 0, "not many queues at a time"


def test_a_queue_of_sync_jobs_is_never_asked_for_more_than_the_threads_can_take():
    appetite = Appetite()
    appetite.brought("q", sync=4, coroutines=0)
    assert [appetite.ask("q", room, places=0) for room in (4, 1, 0, -1)] == [4, 1, 0, 0]


def test_a_known_queue_is_tried_with_one_job_once_in_a_while():
    """The jobs that run may run for hours, and meanwhile the queue may bring the other kind."""
    threads_busy, places_taken = Appetite(), Appetite()
    threads_busy.brought("q", sync=4, coroutines=0)
    assert [threads_busy.ask("q", room=0, places=100) for _ in range(3)] == [1, 0, 0]
    places_taken.brought("q", sync=0, coroutines=4)
    assert [places_taken.ask("q", room=4, places=0) for _ in range(3)] == [1, 0, 0]


def test_a_queue_of_coroutines_is_asked_for_twice_as_many_each_time_up_to_the_free_places():
    appetite, asked = Appetite(), []
    places, got = 100, 1
    while places:
        appetite.brought("q", sync=0, coroutines=got)
        got = appetite.ask("q", room=4, places=places)
        places -= got
        asked.append(got)
    assert asked == [2, 4, 8, 16, 32, 38]
    assert appetite.ask("q", room=4, places=0) <= 1, "its next jobs would be coroutines without a place"


def test_a_queue_of_both_kinds_is_asked_for_both():
    appetite = Appetite()
    appetite.brought("q", sync=3, coroutines=2)
    assert appetite.ask("q", room=5, places=100) == 9
    assert appetite.ask("q", room=0, places=100) == 4


def test_a_queue_that_turns_to_sync_jobs_is_no_longer_asked_for_coroutines():
    appetite = Appetite()
    appetite.brought("q", sync=0, coroutines=50)
    appetite.brought("q", sync=60, coroutines=0)
    assert appetite.ask("q", room=0, places=100) <= 1


def test_an_empty_claim_teaches_nothing():
    appetite = Appetite()
    appetite.brought("q", sync=0, coroutines=5)
    appetite.brought("q", sync=0, coroutines=0)
    assert appetite.ask("q", room=4, places=100) == 10


def test_busy_threads_look_for_new_queues_only_now_and_then_unless_coroutines_are_known():
    appetite = Appetite()
    assert [appetite.wants_coroutines(100) for _ in range(3)] == [True, False, False]
    appetite.brought("q", sync=0, coroutines=1)
    assert appetite.wants_coroutines(100)
    assert not appetite.wants_coroutines(0)


def test_a_queue_of_batches_is_asked_for_a_batch_for_each_thread():
    appetite = Appetite()
    assert [appetite.ask("q", room, places=0, batch=100) for room in (4, 1, 0)] == [400, 100, 0]


def test_jobs_that_run_alone_take_a_thread_each():
    appetite = Appetite()
    appetite.brought("q", sync=100, coroutines=0, alone=100)
    assert appetite.ask("q", 4, places=0, batch=100) == 4
    appetite.brought("q", sync=100, coroutines=0, alone=1)
    assert 100 < appetite.ask("q", 4, places=0, batch=100) < 300
    appetite.brought("q", sync=3, coroutines=0)
    assert appetite.ask("q", 4, places=0, batch=100) == 400


def test_a_queue_with_long_payloads_is_asked_for_what_fits_together(monkeypatch):
    monkeypatch.setattr(appetites, "HELD_CHARS", 1000)
    appetite = Appetite()
    appetite.brought("q", sync=4, coroutines=0, longest=100)
    assert appetite.ask("q", room=50, places=0, free=4) == 10
    assert appetite.ask("q", room=50, places=0, free=4, held=3) == 7
    assert appetite.ask("q", room=50, places=0, free=4, held=9) == 4, "free threads get their jobs"
    assert appetite.ask("another", room=50, places=0, held=9) == 50
    for _ in range(200):
        appetite.brought("q", sync=4, coroutines=0, longest=10)
    assert appetite.ask("q", room=50, places=0) == 50


def test_a_batch_of_long_payloads_is_smaller(monkeypatch):
    monkeypatch.setattr(appetites, "HELD_CHARS", 1000)
    appetite = Appetite()
    appetite.brought("q", sync=4, coroutines=0, longest=100)
    assert appetite.ask("q", room=2, places=0, batch=100, free=1) == 10
