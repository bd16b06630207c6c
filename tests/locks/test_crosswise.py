"""Two holders that want each other's lock: one of them is told, and neither loses what it has."""

import threading

import pytest
from django.db import Error, connection, transaction

from jobqueue.exceptions import LockNotAcquired
from jobqueue.locks import lease_lock, mutex, named_lock
from jobqueue.transactions import retry_transaction
from tests.app.models import Ticket
from tests.locks.helpers import mutex_in_transaction
from tests.marks import finding
from tests.patience import patient
from tests.races.actors import Actor, all_at_once
from tests.settings import VENDOR

real = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer, and no locks by name")
#: longer than any server needs to see a circle
WAIT_SECONDS = 20


class Side:
    """One of two that hold one lock and want the other; who is inside which is written down."""

    inside = {}
    overlaps = []

    def __init__(self, own, other, both):
        self.own, self.other, self.both = own, other, both

    def run(self):
        """ "both", or "refused" and still alone under its own lock."""
        with named_lock(self.own, 0):
            self.enter(self.own)
            self.both.wait(patient())
            try:
                with named_lock(self.other, WAIT_SECONDS):
                    self.enter(self.other)
                    self.leave(self.other)
                    found = "both"
            except LockNotAcquired:
                # Under its own lock as before: nobody else gets it.
                assert isinstance(Actor(named_lock(self.own, 0).acquire).outcome(), LockNotAcquired)
                found = "refused"
            self.leave(self.own)
        return found

    def enter(self, name):
        """Nobody else may be inside."""
        if self.inside.get(name):
            self.overlaps.append(name)
        self.inside[name] = self.inside.get(name, 0) + 1

    def leave(self, name):
        """Somebody else may come."""
        self.inside[name] -= 1


@real
@finding("M6")
def test_named_locks_crosswise_one_is_refused_and_keeps_what_it_has():
    Side.inside, Side.overlaps = {}, []
    both = threading.Barrier(2)
    outcomes = all_at_once([Side("a", "b", both).run, Side("b", "a", both).run])
    assert sorted(map(str, outcomes)) == ["both", "refused"]
    assert Side.overlaps == []


@real
@finding("M6")
@finding("L24")
@pytest.mark.skipif(VENDOR != "postgres", reason="elsewhere no limit of the session ends this wait")
def test_a_limit_of_the_statement_ends_the_wait_and_no_lock_that_is_held():
    def hold():
        with named_lock("taken", 0):
            held.set()
            assert leave.wait(patient())

    held, leave = threading.Event(), threading.Event()
    holder = Actor(hold)
    assert held.wait(patient())
    try:
        with named_lock("outer", 0):
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = '300ms'")
            with pytest.raises(LockNotAcquired, match="other locks of this connection are still held"):
                named_lock("taken", WAIT_SECONDS).acquire()
            with connection.cursor() as cursor:
                # For what follows a busy machine may need longer.
                cursor.execute("SET statement_timeout = 0")
            assert isinstance(Actor(named_lock("outer", 0).acquire).outcome(), LockNotAcquired)
    finally:
        leave.set()
        holder.result()
        connection.close()


@real
def test_mutexes_crosswise_are_redone_by_the_owner_of_the_transaction():
    first_round = threading.Barrier(2)

    def side(number, own, other):
        tries = []

        @retry_transaction
        def sell():
            tries.append(1)
            mutex(own)
            if len(tries) == 1:
                first_round.wait(patient())
            mutex(other)
            Ticket.objects.create(number=str(number))

        sell()
        return len(tries)

    for key in "ab":
        mutex_in_transaction(key)
    tries = all_at_once([lambda: side(1, "a", "b"), lambda: side(2, "b", "a")])
    assert sorted(tries) == [1, 2]
    assert Ticket.objects.count() == 2


@real
def test_a_mutex_and_a_named_lock_crosswise_end_by_the_bound_of_the_one_that_has_one():
    mutex_in_transaction("a")
    both = threading.Barrier(2)

    def mutex_inside():
        with named_lock("n", 0):
            both.wait(patient())
            with transaction.atomic():
                mutex("a", timeout_seconds=1)

    def named_beside():
        with transaction.atomic():
            mutex("a")
            both.wait(patient())
            return Actor(named_lock("n", 1).acquire).outcome()

    outcomes = all_at_once([mutex_inside, named_beside])
    assert all(isinstance(one, LockNotAcquired) or not isinstance(one, Error) for one in outcomes)
    assert any(isinstance(one, LockNotAcquired) for one in outcomes)


@real
def test_lease_locks_crosswise_end_by_their_bounds_and_both_keep_their_own():
    both, done = threading.Barrier(2), threading.Barrier(2)

    def side(own, other):
        with lease_lock(own, 600, 0) as lock:
            both.wait(patient())
            with pytest.raises(LockNotAcquired, match=r"within 0\.3 s"):
                lease_lock(other, 600, 0.3).acquire()
            lock.renew()
            done.wait(patient())
        return lock.fence

    assert all_at_once([lambda: side("a", "b"), lambda: side("b", "a")]) == [1, 1]
