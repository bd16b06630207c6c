"""What was claimed ahead and must not run any more is not started, and given back."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import handler
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.worker.run import pool
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import CANCEL, LOST, Hold, Scoreboard
from tests.patience import patient, wait_until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_SECONDS = 600


def leased(number):
    """A lease on job `number`."""
    facts = {"token": b"", "attempt": 1, "task": None, "max_attempts": 25, "worker": "w", "using": "default"}
    instants = {
        "lock_until": NOW + timedelta(seconds=LEASE_SECONDS),
        "locked_at": NOW,
        "run_at": NOW,
        "created_at": NOW,
    }
    return Lease(number, fence=number, payload=number, queue="q", lease_seconds=LEASE_SECONDS, **facts, **instants)


class Hands:
    """A pool with one thread; its first job, number 1, runs until go_on is set, and the others wait behind it."""

    def __init__(self):
        self.ran, self.begun, self.go_on = [], threading.Event(), threading.Event()
        self.slots = Scoreboard(1, 8).lease_slots[0]
        self.pool = Pool(self.slots, 1, 1, lambda: False)

    def run(self, payload):
        self.ran.append(payload)
        self.begun.set()
        assert self.go_on.wait(patient())

    async def run_soon(self, payload):
        self.run(payload)

    def take(self, number, *, age_seconds=0.0):
        """The place on the scoreboard of a lease that was claimed `age_seconds` ago."""
        self.pool.take([leased(number)], 8, 8, time.monotonic() - age_seconds)
        return next(slot for slot in self.slots if slot.job_id == number)


@pytest.fixture(params=["threads", "coroutines"])
def hands(request, monkeypatch):
    monkeypatch.setattr(registry, "_handlers", {})
    monkeypatch.setattr(registry, "knows_coroutines", lambda: request.param == "coroutines")
    found = Hands()
    handler("q")(found.run if request.param == "threads" else found.run_soon)
    found.take(1)
    assert found.begun.wait(patient())
    yield found
    # Else its thread would run them by the handler of the next test.
    found.pool.take_back()
    found.go_on.set()


def outrun(slot):
    slot.lease_until = time.monotonic()


def flag(flags):
    def write(slot):
        slot.flags |= flags

    return write


@pytest.mark.parametrize("spoil", [outrun, flag(LOST), flag(CANCEL)], ids=["outrun", "lost", "canceled"])
def test_a_job_that_waits_is_not_started_when_it_must_not_run_any_more(hands, spoil):
    spoil(hands.take(2))
    hands.take(3)
    hands.go_on.set()
    wait_until(lambda: 3 in hands.ran)
    assert hands.ran == [1, 3]
    (refused,) = hands.pool.take_refused()
    assert refused.job_id == 2
    assert hands.pool.take_refused() == []


def test_a_lease_counts_from_before_its_claim_and_is_as_long_as_the_database_says(hands):
    hands.take(2, age_seconds=LEASE_SECONDS)
    hands.take(3, age_seconds=LEASE_SECONDS - 300)
    hands.go_on.set()
    wait_until(lambda: 3 in hands.ran)
    assert hands.ran == [1, 3]


def test_a_renewal_lets_it_start_and_one_of_another_lease_does_not(hands):
    renewed, other = hands.take(2, age_seconds=LEASE_SECONDS), hands.take(3, age_seconds=LEASE_SECONDS)
    renewed.renewed(2, 2, time.monotonic() + LEASE_SECONDS)
    other.renewed(3, 2, time.monotonic() + LEASE_SECONDS)
    hands.take(4)
    hands.go_on.set()
    wait_until(lambda: 4 in hands.ran)
    assert hands.ran == [1, 2, 4]


def test_a_renewal_never_shortens_a_lease():
    slot = Scoreboard(1, 1).lease_slots[0][0]
    slot.job_id, slot.fence, slot.hold, slot.lease_until = 2, 2, Hold.WAITING, 50.0
    slot.renewed(2, 2, 40.0)
    assert slot.lease_until == 50.0


def taken_back(hands, run_seconds=0.0):
    return sorted(lease.job_id for lease in hands.pool.take_back_late(run_seconds))


def test_what_waits_goes_back_as_soon_as_the_oldest_has_waited_for_long(hands, monkeypatch):
    # A claim that took long itself has nothing to do with it.
    hands.take(5, age_seconds=LEASE_SECONDS - 300)
    monkeypatch.setattr(pool, "STALLED_SECONDS", 60.0)
    assert taken_back(hands) == []
    monkeypatch.setattr(pool, "STALLED_SECONDS", 0.05)
    late_at = time.monotonic() + pool.STALLED_SECONDS
    wait_until(lambda: time.monotonic() > late_at, what="the time after which it has waited for long")
    hands.take(6)
    assert taken_back(hands) == [5, 6]
    hands.go_on.set()
    hands.take(7)
    wait_until(lambda: 7 in hands.ran)
    assert hands.ran == [1, 7]


@pytest.mark.parametrize("hands", ["threads"], indirect=True)
def test_of_a_list_that_became_long_only_the_beginning_is_kept(hands):
    for number in range(2, 8):
        hands.take(number)
    assert taken_back(hands, run_seconds=0.15) == []
    assert taken_back(hands, run_seconds=0.24) == [4, 5, 6, 7], "half a second of work stays"


@pytest.mark.parametrize("hands", ["coroutines"], indirect=True)
def test_a_loop_that_is_blocked_gets_no_more(hands):
    hands.pool._coroutines = 3
    assert hands.pool.places == 2
    hands.take(2)
    assert hands.pool.places == 0
    hands.pool.take_back()
    assert hands.pool.places == 0, "the loop has not answered yet"
