"""mutex() and reads that stand still: whatever the isolation level, an old state is never believed."""

import importlib.util
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, connections, transaction

from jobqueue import enqueue
from jobqueue.allocate import take
from jobqueue.counter import ShardedCounter
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import StaleSnapshot
from jobqueue.idempotency import once
from jobqueue.locks import mutex
from jobqueue.maintenance import cleaner
from jobqueue.models import MutexRow
from jobqueue.models.locks import LEASE_FLOOR, MUTEX_FLOOR, add_to_floor
from jobqueue.transitions import claim
from tests.app.models import Ticket
from tests.locks.helpers import MYSQL, mutex_in_transaction, repeatable_read
from tests.marks import finding
from tests.races.actors import Actor
from tests.settings import VENDOR

real = pytest.mark.django_db(transaction=True)
mysql = pytest.mark.skipif(not MYSQL, reason="PostgreSQL compares a write with the snapshot by itself")
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="the suite's SQLite begins with the write lock")
#: how a project gets a level that its sessions do not begin with
LEVELS = ["one transaction", "after the first use"]


@contextmanager
def raised(how):
    """Inside, transactions of this connection that somebody else begins have one snapshot."""
    mutex_in_transaction("warm")
    try:
        if how == "after the first use":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ"
                    if VENDOR == "postgres"
                    else "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
                )
        yield
    finally:
        connection.close()


def set_level(how):
    """At the beginning of a transaction."""
    if how == "one transaction":
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def take_and_sell(key="a"):
    """What the last holder commits."""
    with transaction.atomic():
        mutex(key)
        Ticket.objects.create(number=f"sold-{Ticket.objects.count()}")


def read_then_lock(how):
    """Take the mutex after a read from before its last holder."""
    with raised(how), transaction.atomic():
        set_level(how)
        Ticket.objects.count()
        Actor(take_and_sell).result()
        mutex("a")


@real
@row_locks
@pytest.mark.parametrize("how", LEVELS)
@pytest.mark.parametrize("known", [pytest.param(True, marks=[finding("H3")] if MYSQL else []), False])
def test_an_old_snapshot_is_refused_for_known_and_for_new_keys(how, known):
    if known:
        mutex_in_transaction("a")
    with pytest.raises(StaleSnapshot, match="begin again"):
        read_then_lock(how)


@real
@row_locks
@pytest.mark.parametrize("how", LEVELS)
@pytest.mark.parametrize("known", [True, False])
def test_a_transaction_that_locks_first_sees_what_was_committed(how, known):
    if known:
        mutex_in_transaction("a")
    take_and_sell()
    with raised(how), transaction.atomic():
        set_level(how)
        mutex("a")
        assert Ticket.objects.count() == 1
        # Again, and a new one: nobody has held it since.
        mutex("a")
        mutex("another")


@real
@mysql
@finding("H3")
@pytest.mark.parametrize("how", LEVELS)
def test_a_transaction_of_ours_reads_what_is_committed_whatever_the_level_was_set_to(how):
    found = vendor("default")
    with found.transaction(connection):
        assert not Ticket.objects.exists()
    with raised(how):
        set_level(how)
        with found.transaction(connection):
            assert not Ticket.objects.exists()
            Actor(lambda: Ticket.objects.create(number="theirs")).result()
            assert Ticket.objects.exists()


@real
@row_locks
@pytest.mark.parametrize("how", LEVELS)
def test_claims_once_and_take_work_under_a_level_that_was_raised(how):
    with raised(how):
        Ticket.objects.create(number="1")
        enqueue("levels", {})
        set_level(how)
        assert len(claim("levels", worker="me")) == 1
        set_level(how)
        with once("levels") as first:
            first.result = "done"
        set_level(how)
        assert len(take(Ticket.objects.filter(buyer=""), changes={"buyer": "ann"}, request_id="r")) == 1
        with transaction.atomic():
            set_level(how)
            Ticket.objects.count()
            with once("levels") as again:
                assert (again.done, again.result) == (True, "done")
            assert take(Ticket.objects.filter(buyer=""), changes={"buyer": "bob"}) == []


def take_again_after_deletion(delete):
    """Take "a" under a snapshot from before its row was deleted, made again and taken by somebody else."""
    with repeatable_read():
        Ticket.objects.count()
        Actor(delete).result()
        Actor(take_and_sell).result()
        mutex("a")


@real
@mysql
@finding("M13")
def test_a_row_that_was_deleted_and_taken_again_is_no_proof_of_a_fresh_snapshot():
    mutex_in_transaction("a")
    with pytest.raises(StaleSnapshot):
        take_again_after_deletion(lambda: MutexRow.objects.all().delete())


@real
@row_locks
@finding("M13")
def test_a_row_that_was_taken_and_deleted_since_the_snapshot_is_noticed():
    def lock_after_deletion():
        with repeatable_read():
            Ticket.objects.count()
            Actor(take_and_sell).result()
            Actor(lambda: MutexRow.objects.all().delete()).result()
            mutex("a")

    with pytest.raises(StaleSnapshot):
        lock_after_deletion()


@real
@row_locks
def test_a_deletion_before_the_snapshot_refuses_nobody():
    mutex_in_transaction("a")
    MutexRow.objects.get().delete()
    with repeatable_read():
        Ticket.objects.count()
        mutex("a")
        mutex("b")


@real
@finding("B9")
def test_rows_that_nobody_has_taken_for_long_are_deleted_and_the_others_left():
    MutexRow.objects.bulk_create(
        MutexRow(lock_key=f"old-{number}", created_at=UtcNowPlus(-10 * 86_400)) for number in range(5)
    )
    mutex_in_transaction("new")
    cleaner.sweep_locks(None, using="default")
    assert set(MutexRow.objects.values_list("pk", flat=True)) == {'["new"]'}


@real
def test_a_row_that_is_in_use_again_is_left():
    MutexRow.objects.create(lock_key='["a"]', created_at=UtcNowPlus(-10 * 86_400))
    mutex_in_transaction("a")
    assert cleaner.sweep_locks(None, using="default")["mutexes_deleted"] == 0


@real
@row_locks
def test_the_sweeper_passes_over_a_row_that_somebody_holds():
    MutexRow.objects.create(lock_key='["a"]', created_at=UtcNowPlus(-10 * 86_400))
    with transaction.atomic():
        mutex("a")
        sweeping = Actor(lambda: cleaner.sweep_locks(None, using="default")["mutexes_deleted"])
        assert sweeping.result() == 0


def sessions_so_far():
    """How many the server has begun."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Connections'")
        return int(cursor.fetchone()[1])


@real
@mysql
@finding("B9")
def test_many_new_keys_need_one_more_session_and_not_one_each():
    before = sessions_so_far()
    with transaction.atomic():
        for number in range(60):
            mutex("new", number)
    assert sessions_so_far() - before < 30


@real
@mysql
@finding("B9")
def test_a_server_that_takes_no_more_sessions_still_gives_a_new_key(monkeypatch):
    create = connections.create_connection

    def refused(alias):
        session = create(alias)

        def connect():
            raise OperationalError(1040, "Too many connections")

        session.connect = session.ensure_connection = connect
        session.get_new_connection = lambda params: connect()
        return session

    # The session that is kept for a while, by another test.
    forget_the_session_beside(monkeypatch)
    monkeypatch.setattr(connections, "create_connection", refused)
    mutex_in_transaction("never seen before")
    assert MutexRow.objects.get().takes == 1


def forget_the_session_beside(monkeypatch):
    """As in a process that has not needed one yet."""
    if importlib.util.find_spec("jobqueue.db.mysql.locks") is not None:
        beside = importlib.import_module("jobqueue.db.mysql.locks")
        monkeypatch.setattr(beside, "_beside", beside.Beside())


@real
@mysql
def test_a_new_mutex_at_an_old_snapshot_keeps_no_counter_from_being_made():
    make_floors()
    with repeatable_read():
        list(MutexRow.objects.all()[:1])
        mutex("new")
        assert not Actor(ShardedCounter("hits").add, 1).is_blocked()


def make_floors():
    """As the migration has made them; the rows of other tests are deleted."""
    for part in (LEASE_FLOOR, MUTEX_FLOOR):
        add_to_floor(part, 0, "default")
