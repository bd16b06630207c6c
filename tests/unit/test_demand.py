"""How many jobs a queue is asked for."""

from __future__ import annotations

import pytest

from jobqueue.worker.child import fetcher
from jobqueue.worker.child.fetcher import Demand


@pytest.fixture(autouse=True)
def looked(monkeypatch):
    """No second look before the test has ended."""
    monkeypatch.setattr(fetcher, "TRY_SECONDS", 60.0)


def test_an_unknown_queue_is_asked_for_what_the_threads_can_take():
    assert Demand().ask("q", room=4, places=100) == 4


def test_an_unknown_queue_is_tried_with_one_job_while_all_threads_are_busy():
    demand = Demand()
    assert demand.ask("q", room=-3, places=0) == 0
    assert demand.ask("q", room=0, places=100) == 1
    assert demand.ask("another", room=0, places=100) == 0, "not many queues at a time"


def test_a_queue_of_sync_jobs_is_never_asked_for_more_than_the_threads_can_take():
    demand = Demand()
    demand.brought("q", sync=4, coroutines=0)
    assert [demand.ask("q", room, places=0) for room in (4, 1, 0, -1)] == [4, 1, 0, 0]


def test_a_known_queue_is_tried_with_one_job_once_in_a_while():
    """The jobs that run may run for hours, and meanwhile the queue may bring the other kind."""
    threads_busy, places_taken = Demand(), Demand()
    threads_busy.brought("q", sync=4, coroutines=0)
    assert [threads_busy.ask("q", room=0, places=100) for _ in range(3)] == [1, 0, 0]
    places_taken.brought("q", sync=0, coroutines=4)
    assert [places_taken.ask("q", room=4, places=0) for _ in range(3)] == [1, 0, 0]


def test_a_queue_of_coroutines_is_asked_for_twice_as_many_each_time_up_to_the_free_places():
    demand, asked = Demand(), []
    places, got = 100, 1
    while places:
        demand.brought("q", sync=0, coroutines=got)
        got = demand.ask("q", room=4, places=places)
        places -= got
        asked.append(got)
    assert asked == [2, 4, 8, 16, 32, 38]
    assert demand.ask("q", room=4, places=0) <= 1, "its next jobs would be coroutines without a place"


def test_a_queue_of_both_kinds_is_asked_for_both():
    demand = Demand()
    demand.brought("q", sync=3, coroutines=2)
    assert demand.ask("q", room=5, places=100) == 9
    assert demand.ask("q", room=0, places=100) == 4


def test_a_queue_that_turns_to_sync_jobs_is_no_longer_asked_for_coroutines():
    demand = Demand()
    demand.brought("q", sync=0, coroutines=50)
    demand.brought("q", sync=60, coroutines=0)
    assert demand.ask("q", room=0, places=100) <= 1


def test_an_empty_claim_teaches_nothing():
    demand = Demand()
    demand.brought("q", sync=0, coroutines=5)
    demand.brought("q", sync=0, coroutines=0)
    assert demand.ask("q", room=4, places=100) == 10


def test_busy_threads_look_for_new_queues_only_now_and_then_unless_coroutines_are_known():
    demand = Demand()
    assert [demand.wants_coroutines(100) for _ in range(3)] == [True, False, False]
    demand.brought("q", sync=0, coroutines=1)
    assert demand.wants_coroutines(100)
    assert not demand.wants_coroutines(0)


def test_a_queue_of_batches_is_asked_for_a_batch_for_each_thread():
    demand = Demand()
    assert [demand.ask("q", room, places=0, batch=100) for room in (4, 1, 0)] == [400, 100, 0]


def test_jobs_that_run_alone_take_a_thread_each():
    demand = Demand()
    demand.brought("q", sync=100, coroutines=0, alone=100)
    assert demand.ask("q", 4, places=0, batch=100) == 4
    demand.brought("q", sync=100, coroutines=0, alone=1)
    assert 100 < demand.ask("q", 4, places=0, batch=100) < 300
    demand.brought("q", sync=3, coroutines=0)
    assert demand.ask("q", 4, places=0, batch=100) == 400


def test_a_queue_with_long_payloads_is_asked_for_what_fits_together(monkeypatch):
    monkeypatch.setattr(fetcher, "HELD_CHARS", 1000)
    demand = Demand()
    demand.brought("q", sync=4, coroutines=0, longest=100)
    assert demand.ask("q", room=50, places=0, free=4) == 10
    assert demand.ask("q", room=50, places=0, free=4, held=3) == 7
    assert demand.ask("q", room=50, places=0, free=4, held=9) == 4, "free threads get their jobs"
    assert demand.ask("another", room=50, places=0, held=9) == 50
    for _ in range(200):
        demand.brought("q", sync=4, coroutines=0, longest=10)
    assert demand.ask("q", room=50, places=0) == 50


def test_a_batch_of_long_payloads_is_smaller(monkeypatch):
    monkeypatch.setattr(fetcher, "HELD_CHARS", 1000)
    demand = Demand()
    demand.brought("q", sync=4, coroutines=0, longest=100)
    assert demand.ask("q", room=2, places=0, batch=100, free=1) == 10
