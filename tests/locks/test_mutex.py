"""mutex(): one transaction at a time for a key, whether its row is there yet or not."""

import uuid
from contextlib import closing
from decimal import Decimal

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.db.mysql.locks import cursor_beside
from jobqueue.exceptions import InvalidType, InvalidValue, LockNotAcquired, StaleSnapshot, TransactionRequired
from jobqueue.locks import amutex, mutex, mutex_many
from jobqueue.locks.mutex_rows import encode
from jobqueue.models import MutexRow
from tests.app.models import Ticket
from tests.faults.conftest import kill
from tests.locks.helpers import MYSQL, mutex_in_transaction, repeatable_read
from tests.marks import finding
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

#: in a transaction that is rolled back, which is fast; and with real commits, for those who have company
plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock for the whole database")


@pytest.fixture(autouse=True)
def no_rows(db):
    """On MySQL rows are committed by a connection of their own, whatever becomes of the test's transaction."""
    if MYSQL:
        with closing(connections.create_connection("default")) as other, other.cursor() as cursor:
            cursor.execute("DELETE FROM job_mutex")


def lock_wait():
    """The session's setting, which must be as before."""
    with connection.cursor() as cursor:
        if MYSQL:
            cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
        elif VENDOR == "postgres":
            cursor.execute("SHOW lock_timeout")
        else:
            cursor.execute("PRAGMA busy_timeout")
        return cursor.fetchone()[0]


@real
def test_outside_a_transaction_it_is_refused():
    with pytest.raises(TransactionRequired, match=r"atomic\(\)"):
        mutex("a")
    assert not MutexRow.objects.exists()


@plain
def test_it_locks_when_called_and_is_a_block_too():
    with transaction.atomic():
        first = mutex("seat", 7)
        with mutex("seat", 7) as second:
            pass
    assert first.key == second.key == '["seat",7]'
    assert MutexRow.objects.get().takes == 2


@plain
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", 1), ("a", "1")),
        (("a", "b"), ("ab",)),
        (("A",), ("a",)),
        (("a",), ("a ",)),
        (("é",), ("e",)),
        (("straße",), ("strasse",)),
        (("x" * 300 + "a",), ("x" * 300 + "b",)),
        (("a\x00",), ("a",)),
    ],
)
def test_keys_that_look_alike_are_two(one, other):
    assert encode(one) != encode(other)
    with transaction.atomic():
        mutex(*one)
        mutex(*other)
    assert MutexRow.objects.count() == 2
    assert all(len(key) <= 255 for key in MutexRow.objects.values_list("pk", flat=True))


def test_an_enum_member_is_its_value():
    from jobqueue.models import Job

    assert encode((Job.Status.DONE,)) == encode((2,))


@finding("L25")
def test_a_uuid_and_its_string_are_two_keys():
    number = uuid.uuid4()
    assert encode((number,)) == encode((uuid.UUID(str(number)),))
    assert encode((number,)) != encode((str(number),))


@plain
@pytest.mark.parametrize("key", [(), (None,), (True,), (1.5,), (Decimal(1),), (b"x",), (["a"],)])
def test_a_key_of_another_kind_is_refused_before_anything_is_locked(key):
    with pytest.raises((InvalidType, InvalidValue)):
        mutex(*key)
    assert not MutexRow.objects.exists()


@real
@row_locks
@pytest.mark.parametrize("known", [True, False])
def test_another_transaction_waits_until_the_holder_commits(known):
    if known:
        mutex_in_transaction("a")
    with holding(lambda: mutex("a")):
        waiter = Actor(mutex_in_transaction, "a")
        assert waiter.is_blocked()
        mutex_in_transaction("b")
    waiter.result()


@real
@row_locks
def test_a_rollback_frees_it_for_one_after_the_other_of_many_waiters_without_a_deadlock():
    def guarded():
        with transaction.atomic():
            mutex("new")
            if not Ticket.objects.exists():
                Ticket.objects.create(number="1")

    for _ in range(3):
        MutexRow.objects.all().delete()
        Ticket.objects.all().delete()
        with holding(lambda: mutex("new"), commit=False):
            waiters = [Actor(guarded) for _ in range(6)]
            assert waiters[0].is_blocked()
        assert [waiter.outcome() for waiter in waiters] == [None] * 6
        assert Ticket.objects.count() == 1


@real
@pytest.mark.skipif(not MYSQL, reason="the others need no second session")
def test_a_second_session_that_the_server_has_ended_while_it_was_idle_is_replaced():
    mutex_in_transaction("first")
    # By its own id: idle threads of earlier tests have sessions, too.
    with cursor_beside("default") as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        (number,) = cursor.fetchone()
    kill(number)
    with transaction.atomic():
        Ticket.objects.create(number="1")
        mutex("second")
    assert Ticket.objects.count() == 1
    assert MutexRow.objects.count() == 2


@real
@row_locks
def test_check_then_insert_is_safe_for_a_key_without_any_row():
    def place(number):
        with transaction.atomic():
            mutex("product", 5)
            if Ticket.objects.filter(buyer="5").count() < 3:
                Ticket.objects.create(number=str(number), buyer="5")

    assert all_at_once([lambda n=n: place(n) for n in range(8)]) == [None] * 8
    assert Ticket.objects.count() == 3


@real
@row_locks
@pytest.mark.parametrize("timeout_seconds", [0, 1])
def test_not_got_in_time_says_so_and_the_transaction_goes_on(timeout_seconds):
    before = lock_wait()
    mutex_in_transaction("a")
    with holding(lambda: mutex("a")):
        with transaction.atomic():
            Ticket.objects.create(number="before")
            with pytest.raises(LockNotAcquired, match="another transaction holds it"):
                mutex("a", timeout_seconds=timeout_seconds)
            Ticket.objects.create(number="after")
            assert lock_wait() == before
    assert Ticket.objects.count() == 2
    assert lock_wait() == before


@plain
@pytest.mark.parametrize("timeout_seconds", [None, 0, 1])
def test_got_it_leaves_the_sessions_settings_as_they_were(timeout_seconds):
    before = lock_wait()
    with transaction.atomic():
        mutex("a", timeout_seconds=timeout_seconds)
        assert lock_wait() == before
    assert lock_wait() == before


@real
@row_locks
def test_several_keys_are_taken_low_to_high_whatever_their_order():
    def take(keys):
        for _ in range(5):
            with transaction.atomic():
                mutex_many(keys)

    keys = [("k", n) for n in range(6)]
    outcomes = all_at_once([lambda: take(keys), lambda: take(keys[::-1])] * 3)
    assert outcomes == [None] * 6


@plain
def test_several_keys_come_back_in_the_order_given_and_twice_the_same_is_taken_once():
    with transaction.atomic():
        found = mutex_many(["b", ("a", 1), "b"])
    assert [one.key for one in found] == ['["b"]', '["a",1]', '["b"]']
    assert set(MutexRow.objects.values_list("takes", flat=True)) == {1}


@real
@pytest.mark.skipif(VENDOR == "sqlite", reason="the suite's SQLite begins with the write lock, so no read comes first")
def test_a_snapshot_from_before_the_last_holder_is_refused():
    mutex_in_transaction("a")

    def read_then_lock():
        with repeatable_read():
            assert not Ticket.objects.exists()
            with holding(lambda: (mutex("a"), Ticket.objects.create(number="theirs"))):
                pass
            mutex("a")

    with pytest.raises(StaleSnapshot, match="begin again"):
        read_then_lock()


@real
@pytest.mark.skipif(not MYSQL, reason="PostgreSQL opens the snapshot of REPEATABLE READ with the first statement")
def test_a_waiter_that_read_nothing_before_sees_what_the_holder_committed():
    mutex_in_transaction("a")

    def lock_then_read():
        with repeatable_read():
            mutex("a")
            return Ticket.objects.count()

    with holding(lambda: (mutex("a"), Ticket.objects.create(number="theirs"))):
        waiter = Actor(lock_then_read)
        assert waiter.is_blocked()
    assert waiter.result() == 1


@real
@pytest.mark.skipif(not MYSQL, reason="gap locks are InnoDB's")
def test_at_repeatable_read_a_held_key_blocks_no_other_key():
    for key in ("b", "d"):
        mutex_in_transaction(key)
    with repeatable_read():
        mutex("b")
        mutex("d")
        for key in ("a", "c", "e"):
            # New rows, before, between and after those that are held.
            Actor(mutex_in_transaction, key, timeout_seconds=20).result()
    assert set(MutexRow.objects.values_list("lock_key", flat=True)) == {f'["{key}"]' for key in "abcde"}


@plain
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite's busy timeout is a pragma")
def test_a_known_key_costs_a_look_and_a_write():
    mutex_in_transaction("a")
    with transaction.atomic(), CaptureQueriesContext(connection) as seen:
        mutex("a")
    assert len(seen) == (2 if MYSQL else 1), [query["sql"] for query in seen]


@plain
def test_a_row_that_was_deleted_is_made_again():
    mutex_in_transaction("a")
    MutexRow.objects.all().delete()
    mutex_in_transaction("a")
    assert MutexRow.objects.get().takes == 1


@plain
def test_a_failed_statement_after_it_undoes_only_what_it_should():
    Ticket.objects.create(number="1")
    with transaction.atomic():
        mutex("a")
        with pytest.raises(IntegrityError), transaction.atomic():
            Ticket.objects.create(number="1")
        Ticket.objects.create(number="2")
    assert Ticket.objects.count() == 2


@plain
def test_the_async_form_locks_in_the_thread_of_the_transaction():
    async def work():
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        found = await amutex("a")
        await sync_to_async(block.__exit__)(None, None, None)
        return found.key

    assert async_to_sync(work)() == '["a"]'
    assert MutexRow.objects.get().takes == 1
