"""While the failure of a service is being recorded, no other claimed job of that service starts."""

import threading
import time

import pytest

from jobqueue import handler
from jobqueue.tasks import registry
from jobqueue.worker.run import pool
from jobqueue.worker.run.attempt import outages_of
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.patience import patient, wait_until
from tests.unit.test_not_started import leased

ERRORS = {"down": ConnectionRefusedError("nobody listens"), "wrong": ValueError("bad")}


class Hands:
    """A pool with one thread, that runs jobs of services in their turn."""

    def __init__(self, threads=1):
        self.ran, self.errors = [], {}
        self.go_on = threading.Event()
        self.pool = Pool(Scoreboard(1, 8).lease_slots[0], threads, 1, lambda: False)

    def run(self, payload):
        assert self.go_on.wait(patient())
        self.ran.append(payload)
        if error := self.errors.get(payload):
            raise error

    def waits(self):
        """Return when the thread waits with its next job."""
        wait_until(lambda: self.pool.unrecorded._changed._waiters)

    def take(self, **services):
        """Take jobs 1, 2 and so on, which need these services; "none" needs none."""
        for number, name in enumerate(services.values(), 1):
            lease = leased(number)._replace(dependency=None if name == "none" else name)
            self.pool.take([lease], 8, 8, time.monotonic())


@pytest.fixture
def hands(monkeypatch):
    monkeypatch.setattr(registry, "_handlers", {})
    found = Hands()
    handler("q")(found.run)
    yield found
    found.pool.take_back()
    found.go_on.set()


def ended(pool, count):
    """So many outcomes, as the settler gets them."""
    found = []
    wait_until(lambda: found.extend(pool.ended(0.1)) or len(found) >= count)
    return found


def test_the_next_job_of_the_service_waits_until_the_breaker_is_told(hands):
    hands.errors[1] = ERRORS["down"]
    hands.take(a="stripe", b="stripe")
    hands.go_on.set()
    first = ended(hands.pool, 1)
    hands.waits()
    assert hands.ran == [1]
    hands.pool.unrecorded.recorded(outages_of(first))
    ended(hands.pool, 1)
    assert hands.ran == [1, 2]


@pytest.mark.parametrize("other", ["mail", "none"])
def test_a_job_that_does_not_need_it_goes_on(hands, other):
    hands.errors[1] = ERRORS["down"]
    hands.take(a="stripe", b=other)
    hands.go_on.set()
    ended(hands.pool, 2)
    assert hands.ran == [1, 2]


def test_a_failure_of_the_code_holds_nothing_up(hands):
    hands.errors[1] = ERRORS["wrong"]
    hands.take(a="stripe", b="stripe")
    hands.go_on.set()
    assert not outages_of(ended(hands.pool, 2))
    assert hands.ran == [1, 2]


def test_what_is_told_of_one_failure_is_not_told_of_the_next(hands):
    hands.errors |= {1: ERRORS["down"], 2: ERRORS["down"]}
    hands.take(a="stripe", b="stripe", c="stripe")
    hands.go_on.set()
    first = ended(hands.pool, 1)
    hands.pool.unrecorded.recorded(outages_of(first))
    second = ended(hands.pool, 1)
    hands.waits()
    assert hands.ran == [1, 2]
    hands.pool.unrecorded.recorded(outages_of(second))
    ended(hands.pool, 1)
    assert hands.ran == [1, 2, 3]


def test_nothing_waits_for_ever_if_the_breaker_cannot_be_told(hands, monkeypatch):
    monkeypatch.setattr(pool, "RECORD_SECONDS", 0.05)
    hands.errors[1] = ERRORS["down"]
    hands.take(a="stripe", b="stripe")
    hands.go_on.set()
    ended(hands.pool, 2)
    assert hands.ran == [1, 2]
