"""An enqueue that meets a key of a transaction without end gives up, says why, and leaves the caller's usable."""

import time

import pytest
from django.db import connection, transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job
from jobqueue.producer import enqueueing
from tests.app.tasks import add
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

pytestmark = committed
INNODB = VENDOR in ("mysql", "mariadb")
LIMIT_SECONDS = 1.0
_tests = 0


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A wait that tests can wait for; how long it is besides is no matter of theirs."""
    global _tests
    _tests += 1
    monkeypatch.setattr(enqueueing, "KEY_WAIT_SECONDS", LIMIT_SECONDS, raising=False)


def key():
    """Another for each test: InnoDB locks the gaps beside an entry that was deleted and not purged yet."""
    return f"k{_tests}"


def keyed(number=0):
    return enqueue("q", number, dedupe_key=key())


def atomically(work):
    with transaction.atomic():
        enqueue("q", "before")
        return work()


def going_on(work):
    """The transaction of a caller who can do without the job."""
    with transaction.atomic():
        enqueue("q", "before")
        with pytest.raises(DatabaseBusy):
            work()
        enqueue("q", "after")


WORKS = {
    "enqueue": keyed,
    "enqueue_many": lambda: enqueue_many("q", [1, 2], dedupe_keys=[key(), f"{key()} too"]),
    "a task with an ordering key": lambda: add.using(ordering_key=key()).enqueue(1, 2),
}


def held(work):
    """The transaction that does not end."""
    return (lambda: add.using(ordering_key=key()).enqueue(0, 0)) if "ordering" in work else keyed


ONE_WRITER = pytest.mark.skipif(VENDOR == "sqlite", reason="there every write waits for the one writer, key or not")


@finding("B10")
@ONE_WRITER
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("work", WORKS)
def test_an_enqueue_gives_up_on_a_key_that_is_not_committed(work, inside):
    with holding(held(work)):
        begun = time.monotonic()
        waiting = Actor((lambda: atomically(WORKS[work])) if inside else WORKS[work])
        wait_until(waiting.done.is_set, what="the end of its wait")
        error = waiting.outcome()
        assert time.monotonic() - begun >= 0.9 * LIMIT_SECONDS
        assert isinstance(error, DatabaseBusy)
        assert "key" in str(error)
        assert "commit" in str(error)
    assert Job.objects.count() == 1


@finding("B10")
@ONE_WRITER
def test_the_transaction_of_a_caller_that_was_refused_goes_on():
    with holding(keyed):
        Actor(lambda: going_on(keyed)).result()
    assert sorted(Job.objects.values_list("payload", flat=True), key=str) == [0, "after", "before"]


def lock_timeout():
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout" if INNODB else "SHOW lock_timeout")
        return str(cursor.fetchone()[0])


def set_lock_timeout(seconds):
    with connection.cursor() as cursor:
        cursor.execute(
            f"SET SESSION innodb_lock_wait_timeout = {seconds}" if INNODB else f"SET lock_timeout = '{seconds}s'"
        )


@ONE_WRITER
@pytest.mark.parametrize("busy", [False, True], ids=["free", "held"])
def test_the_callers_own_limit_is_as_it_was_afterwards(busy):
    def work():
        set_lock_timeout(7)
        with transaction.atomic():
            enqueue("q", 1, dedupe_key=f"{key()} mine")
            inside = lock_timeout()
            if busy:
                with pytest.raises(DatabaseBusy):
                    keyed()
        keyed_too = enqueue("q", 1, dedupe_key=f"{key()} mine", ordering_key=key())
        assert keyed_too
        return inside, lock_timeout()

    with holding(keyed):
        assert Actor(work).result() == (("7", "7") if INNODB else ("7s", "7s"))


@ONE_WRITER
def test_a_shorter_limit_of_the_caller_holds(monkeypatch):
    monkeypatch.setattr(enqueueing, "KEY_WAIT_SECONDS", 600, raising=False)

    def work():
        set_lock_timeout(1)
        return atomically(keyed)

    with holding(keyed):
        waiting = Actor(work)
        wait_until(waiting.done.is_set, what="the end of its wait")
        assert isinstance(waiting.outcome(), DatabaseBusy)


@pytest.mark.skipif(VENDOR != "sqlite", reason="the wait for the one writer")
def test_an_enqueue_gives_up_on_a_writer_that_does_not_commit():
    with holding(keyed):
        waiting = Actor(keyed)
        wait_until(waiting.done.is_set, what="the end of its wait")
        assert isinstance(waiting.outcome(), DatabaseBusy)
