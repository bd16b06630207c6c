"""Those who wait for a key: they get the result or the work, not each other's locks, and not beyond their timeout."""

import time

import pytest
from django.db import transaction

from jobqueue.db.clock import UtcNowPlus
from jobqueue.idempotency import InProgress, once
from jobqueue.models import IdempotencyRecord
from jobqueue.transactions import retry_transaction
from tests.app.models import Account
from tests.blocking import waiters
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

pytestmark = committed
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock for the whole database")
innodb = pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="about the shared lock of a duplicate in InnoDB")
WAITERS = 3


def sell(number="1", **options):
    """The effect is a row; the answer is what a caller gets."""
    with once("k", **options) as o:
        if not o.done:
            Account.objects.create(owner=number)
            o.result = number
    return o.result


def sell_in_transaction(number, **options):
    """The caller's transaction is redone if a deadlock undoes it."""
    return retry_transaction(lambda: sell(number, **options))()


def after_a_block_that_outlived_its_record(work):
    """What three who waited for it get: it began a record for a moment, and commits when they all wait."""
    with holding(lambda: sell("first", ttl_seconds=0.001)):
        actors = [Actor(work, str(number), timeout_seconds=patient()) for number in range(WAITERS)]
        wait_until(lambda: waiters() >= WAITERS, what="three who wait")
    return [actor.outcome() for actor in actors]


def one_did_it(outcomes):
    """All have the result of the one that had the effect."""
    assert len(set(outcomes)) == 1, outcomes
    assert set(outcomes) <= {str(number) for number in range(WAITERS)}
    return Account.objects.count() == 2


@innodb
@finding("M8")
@pytest.mark.parametrize("work", [sell, sell_in_transaction])
def test_of_those_who_waited_for_a_block_that_outlived_its_record_one_does_it_again(work):
    assert one_did_it(after_a_block_that_outlived_its_record(work))


@pytest.mark.skipif(VENDOR != "postgres", reason="the others are above, or have one writer")
@pytest.mark.parametrize("work", [sell, sell_in_transaction])
def test_so_it_is_where_a_conflict_leaves_no_lock(work):
    assert one_did_it(after_a_block_that_outlived_its_record(work))


def elapsed(work):
    """What came of it, and how many seconds it took."""
    begun = time.monotonic()
    try:
        found = work()
    except InProgress as error:
        found = error
    return found, time.monotonic() - begun


@row_locks
@pytest.mark.parametrize("lapsed", [False, True], ids=["a new key", "a key that ran out"])
@pytest.mark.parametrize("own", [True, False], ids=["alone", "in a transaction"])
def test_the_timeout_bounds_the_wait_of_each_of_many(lapsed, own):
    if lapsed:
        sell("old")
        IdempotencyRecord.objects.update(expires_at=UtcNowPlus(-1))

    def wait():
        if own:
            return elapsed(lambda: sell(timeout_seconds=1))
        with transaction.atomic():
            found = elapsed(lambda: sell(timeout_seconds=1))
            Account.objects.create(owner="goes on")
        return found

    with holding(lambda: sell("held")):
        found = [actor.result() for actor in [Actor(wait) for _ in range(WAITERS)]]
    for error, seconds in found:
        assert isinstance(error, InProgress)
        # It has ended while the block of the other is still open, and not before its time.
        assert seconds > 0.9
    assert Account.objects.filter(owner="goes on").count() == (0 if own else WAITERS)
