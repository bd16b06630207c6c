"""A transaction that the database undid is done again from its beginning, and only then."""

import threading
from contextlib import suppress

import pytest
from django.db import Error, IntegrityError, OperationalError, connection, transaction

from jobqueue.exceptions import InsideTransaction, InvalidType, InvalidValue, LockNotAcquired, StaleSnapshot
from jobqueue.locks import mutex
from jobqueue.transactions import retry_transaction
from tests.app.models import Account, Ticket
from tests.marks import committed
from tests.patience import patient
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

pytestmark = committed
has_rows = pytest.mark.skipif(VENDOR == "sqlite", reason="one writer at a time: no deadlocks")


@pytest.fixture
def accounts():
    return [Account.objects.create(owner=name).pk for name in ("ann", "bob")]


def add(pk, amount=1):
    account = Account.objects.select_for_update().get(pk=pk)
    account.balance += amount
    account.save()


def balances():
    return list(Account.objects.order_by("pk").values_list("balance", flat=True))


def crossing(accounts, swallow=()):
    """Two transactions that lock both accounts in opposite orders, and meet in the middle on their first run."""
    both, runs = threading.Barrier(2), []

    @retry_transaction
    def transfer(first, second):
        runs.append(first)
        add(first)
        with suppress(threading.BrokenBarrierError):
            both.wait(patient() if len(runs) <= 2 else 0)
        with suppress(*swallow):
            add(second)

    actors = [Actor(transfer, *accounts), Actor(transfer, *reversed(accounts))]
    for actor in actors:
        actor.result()
    return runs


@has_rows
def test_a_deadlock_is_redone_whole_and_both_end_well(accounts):
    runs = crossing(accounts)
    assert len(runs) == 3
    assert balances() == [2, 2]


@has_rows
def test_a_deadlock_that_the_function_swallows_is_redone_too(accounts):
    runs = crossing(accounts, swallow=[Error])
    assert len(runs) == 3
    assert balances() == [2, 2]


def lock_timeout():
    """How long this session waits for a lock."""
    ask = {"sqlite": "PRAGMA busy_timeout", "postgres": "SHOW lock_timeout"}
    with connection.cursor() as cursor:
        cursor.execute(ask.get(VENDOR, "SELECT @@SESSION.innodb_lock_wait_timeout"))
        return cursor.fetchone()[0]


def test_a_lock_timeout_is_redone_so_many_times_and_then_raised(accounts):
    runs, inside = [], []

    @retry_transaction(attempts=2, lock_timeout_seconds=0.05)
    def work():
        runs.append(1)
        inside.append(lock_timeout())
        add(accounts[0])

    before = lock_timeout()
    with holding(lambda: add(accounts[0])), pytest.raises(OperationalError) as caught:
        work()
    assert len(runs) == (2 if VENDOR != "sqlite" else 0)
    assert "tried 2 times" in caught.value.__notes__[0]
    assert before not in inside
    assert lock_timeout() == before
    assert balances() == [1, 0]
    assert work() is None
    assert lock_timeout() == before


def test_a_mutex_with_a_timeout_inside_leaves_the_setting_alone(accounts):
    before, seen = lock_timeout(), []

    @retry_transaction(lock_timeout_seconds=7)
    def work():
        outer = lock_timeout()
        mutex("a", timeout_seconds=3)
        seen.append((outer, lock_timeout()))

    work()
    assert seen[0][0] == seen[0][1] != before
    assert lock_timeout() == before


def test_what_the_function_raises_undoes_it_and_is_not_redone(accounts):
    runs = []

    @retry_transaction
    def work(error):
        runs.append(1)
        add(accounts[0])
        raise error

    for error in (ZeroDivisionError(), IntegrityError("no"), LockNotAcquired("no")):
        with pytest.raises(type(error)):
            work(error)
    assert len(runs) == 3
    assert balances() == [0, 0]


def test_a_stale_snapshot_is_redone_from_a_new_one(accounts):
    runs = []

    @retry_transaction
    def work():
        runs.append(1)
        add(accounts[0])
        if len(runs) == 1:
            raise StaleSnapshot("begin again")

    work()
    assert len(runs) == 2
    assert balances() == [1, 0]


def test_an_error_after_the_commit_is_not_a_reason_to_do_it_twice(accounts):
    runs = []

    def hook():
        raise OperationalError(1213, "database is locked, as far as a hook can tell")

    @retry_transaction
    def work():
        runs.append(1)
        add(accounts[0])
        transaction.on_commit(hook)

    with pytest.raises(OperationalError):
        work()
    assert len(runs) == 1
    assert balances() == [1, 0]


@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL answers COMMIT with a rollback")
def test_an_error_that_postgresql_would_turn_into_a_silent_rollback_is_raised(accounts):
    @retry_transaction
    def work():
        add(accounts[0])
        with suppress(Error), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    with pytest.raises(Error, match="division by zero"):
        work()
    assert balances() == [0, 0]


def test_inside_a_transaction_it_refuses_before_it_runs(accounts):
    @retry_transaction
    def work():
        raise AssertionError("not reached")

    with transaction.atomic(), pytest.raises(InsideTransaction, match="Nothing was run"):
        work()

    @retry_transaction
    def outer():
        work()

    with pytest.raises(InsideTransaction):
        outer()


def test_value_name_and_arguments_go_through():
    @retry_transaction(attempts=1)
    def double(number, *, plus=0):
        """Twice."""
        return 2 * number + plus

    assert double(4, plus=1) == 9
    assert (double.__name__, double.__doc__) == ("double", "Twice.")


async def coroutine():
    return None


def generator():
    yield


@pytest.mark.parametrize("bad", [coroutine, generator, "text"])
def test_what_is_no_plain_function_is_refused(bad):
    with pytest.raises(InvalidType, match="plain function"):
        retry_transaction(bad)


@pytest.mark.parametrize("options", [{"attempts": 0}, {"lock_timeout_seconds": 0}, {"attempts": 101}])
def test_odd_numbers_are_refused(options):
    with pytest.raises(InvalidValue):
        retry_transaction(**options)


def test_an_error_that_the_function_swallows_is_raised_if_it_has_undone_the_transaction():
    Ticket.objects.create(number="taken")
    runs = []

    @retry_transaction
    def sell():
        runs.append(1)
        Account.objects.create(owner="effect")
        with suppress(IntegrityError):
            Ticket.objects.create(number="taken")

    with pytest.raises(IntegrityError) as caught:
        sell()
    assert "nothing is stored" in caught.value.__notes__[0]
    assert runs == [1]
    assert not Account.objects.exists()


@has_rows
def test_the_lock_timeout_bounds_the_wait_for_a_mutex_without_one():
    @retry_transaction(attempts=1, lock_timeout_seconds=1)
    def lock():
        mutex("k")

    with holding(lambda: mutex("k")), pytest.raises(OperationalError):
        lock()
    lock()
