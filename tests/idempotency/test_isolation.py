"""once() and take() under an isolation level that was set for one transaction, or after the connection's first use."""

from contextlib import contextmanager

import pytest
from django.db import Error, connection, transaction

from jobqueue.allocate import take
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import DatabaseBusy, StaleSnapshot
from jobqueue.idempotency import once
from jobqueue.models import IdempotencyRecord
from jobqueue.transactions import retry_transaction
from tests.app.models import Account, Ticket
from tests.marks import committed
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one level"),
]
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
#: what a transaction may be told that cannot go on; nothing of it is kept, and it may be redone
REDO = (Error, StaleSnapshot, DatabaseBusy)


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def for_one_transaction(level):
    """SET TRANSACTION: the session keeps its level, and whoever remembers that one is wrong."""
    if VENDOR == "postgres":
        with transaction.atomic():
            execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            yield
    else:
        execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        with transaction.atomic():
            yield


@contextmanager
def after_the_first_use(level):
    """The session's level is changed when the connection has long been used."""
    sell("warm", key="warm")
    if VENDOR == "postgres":
        execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
    else:
        execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    try:
        with transaction.atomic():
            yield
    finally:
        connection.close()


@pytest.fixture(params=[for_one_transaction, after_the_first_use], ids=["for one transaction", "after the first use"])
def raised(request):
    """A transaction at a level that was set in this way."""
    sell("used", key="used")
    return request.param


def sell(number, key="k", **options):
    """The effect is a row; the answer is what a caller gets."""
    with once(key, **options) as o:
        if not o.done:
            Account.objects.create(owner=number)
            o.result = number
    return o.result


def effects():
    return Account.objects.filter(owner__in=["mine", "other"]).count()


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_done_before_the_transaction_is_not_done_again(raised, level):
    sell("other")
    with raised(level):
        assert sell("mine") == "other"
    assert effects() == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("expired", [False, True], ids=["a new key", "a key that ran out"])
def test_what_is_done_after_the_snapshot_is_found_or_the_transaction_must_be_redone(raised, level, expired):
    if expired:
        sell("old")
        IdempotencyRecord.objects.update(expires_at=UtcNowPlus(-1))
    try:
        with raised(level):
            assert effects() == 0
            other = Actor(sell, "other")
            # Under SERIALIZABLE MySQL and MariaDB lock what is read, so it may wait for this transaction.
            if not other.is_blocked():
                assert other.result() == "other"
            found = sell("mine")
    except REDO:
        found = None
    assert found in ("other", "mine", None)
    assert other.outcome() in ("other", "mine")
    assert sell("mine") == other.outcome()
    assert effects() == 1


@pytest.mark.parametrize("level", LEVELS)
def test_who_waits_for_the_block_of_another_gets_its_result_or_must_redo(raised, level):
    def wait():
        try:
            with raised(level):
                effects()
                return sell("mine")
        except REDO:
            return None

    with holding(lambda: sell("other")):
        waiting = Actor(wait)
        assert waiting.is_blocked()
    assert waiting.result() in ("other", None)
    assert effects() == 1


@pytest.mark.parametrize("level", LEVELS[:2])
def test_not_to_wait_leaves_strangers_alone(raised, level):
    """A look that finds no record must not lock the gap in which the keys of others would lie.

    Under SERIALIZABLE every read does, on MySQL and MariaDB.
    """
    with raised(level):
        assert sell("mine", key="absent", timeout_seconds=0) == "mine"
        others = [Actor(sell, "stranger", key=f"stranger-{n}", timeout_seconds=10) for n in range(5)]
        assert [other.result() for other in others] == ["stranger"] * 5


@pytest.mark.parametrize("level", LEVELS[1:])
def test_of_many_at_once_one_has_the_effect_at_every_level(raised, level):
    def act(number):
        @retry_transaction(attempts=20)
        def whole():
            effects()
            return sell("mine" if number % 2 else "other")

        connection.ensure_connection()
        if VENDOR == "postgres":
            execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        else:
            sell("warm", key="warm")
            execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        return whole()

    outcomes = all_at_once([lambda n=n: act(n) for n in range(4)])
    assert len(set(outcomes)) == 1, outcomes
    assert effects() == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_that_was_taken_after_the_snapshot_is_not_handed_out_again(raised, level):
    Ticket.objects.bulk_create([Ticket(number=f"t{n}") for n in range(2)])
    free = Ticket.objects.filter(sold=False).order_by("number")

    def buy(buyer):
        return [row.number for row in take(free, changes={"sold": True, "buyer": buyer}, request_id=buyer)]

    try:
        with raised(level):
            free.count()
            other = Actor(buy, "other")
            other.is_blocked()
            mine = buy("mine")
    except REDO:
        mine = []
    assert not set(mine) & set(other.result())
    assert buy("mine") == mine or not mine
    assert Ticket.objects.filter(buyer="mine").count() == len(mine or buy("mine"))
