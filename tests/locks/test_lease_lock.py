"""lease_lock(): one holder at a time until its time runs out, with a fence that only grows."""

import asyncio
import threading
import time
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.db import Error, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InsideTransaction, InvalidType, InvalidValue, LockLost, LockNotAcquired, LockNotHeld
from jobqueue.locks import lease_lock, lock_all
from jobqueue.locks.lease import sweep
from jobqueue.maintenance import cleaner
from jobqueue.models import LockRow
from jobqueue.models.locks import LEASE_FLOOR, add_to_floor
from tests.blocking import somebody_waits
from tests.factories import seconds_from_now
from tests.faults.conftest import kill, session_id
from tests.locks.helpers import astay, begun_to_wait, expire, row
from tests.marks import finding
from tests.patience import patient, wait_until
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

#: in a transaction that is rolled back, which is fast; and with real commits, for those who have company
plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock for the whole database")


#: the clock of this process, as jobqueue.locks.lease reads it
an_hour_later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600)


def held(name="k", ttl_seconds=60):
    return lease_lock(name, ttl_seconds, 0).acquire()


@plain
def test_a_block_holds_it_and_gives_it_back():
    begun = time.monotonic()
    with lease_lock("k", 3600) as lock:
        assert lock.fence == 1
        of_row, of_lock = seconds_from_now(row()["expires_at"]), lock.remaining_seconds
        # The database's clock and this one need not run alike to the millisecond.
        assert min(of_row, of_lock) + (time.monotonic() - begun) + 0.01 > 3600
        assert max(of_row, of_lock) <= 3600
        with pytest.raises(LockNotAcquired, match="somebody else holds it"):
            held()
    assert row()["owner_token"] is None
    assert lock.remaining_seconds == 0
    assert held().fence == 2


@plain
def test_the_fence_grows_for_ever_also_when_the_row_was_cleaned_up():
    fences = []
    for how in ("release", "expire", "sweep", "release", "sweep", "sweep"):
        lock = held()
        fences.append(lock.fence)
        if how == "expire":
            expire()
        else:
            lock.release()
        if how == "sweep":
            LockRow.objects.update(expires_at=UtcNowPlus(-1))
            assert sweep() == 1
            assert not LockRow.objects.exists()
    assert fences == sorted(set(fences))


@plain
def test_one_that_ran_out_is_taken_over_with_a_higher_fence():
    late = held()
    expire()
    fresh = held()
    assert fresh.fence > late.fence
    before = row()
    with pytest.raises(LockLost, match="somebody else may have held it"):
        late.release()
    assert row() == before
    fresh.release()


@plain
def test_a_block_that_was_overtaken_ends_in_lock_lost():
    def overtaken():
        with lease_lock("k", 60):
            expire()
            held()

    with pytest.raises(LockLost):
        overtaken()


@plain
def test_an_error_of_the_block_is_let_out_with_a_note_when_the_lock_was_lost():
    def overtaken():
        with lease_lock("k", 60):
            expire()
            held()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        overtaken()
    assert "somebody else may have held it" in caught.value.__notes__[0]


@plain
def test_a_release_after_its_time_is_fine_if_nobody_came_in_between():
    lock = held()
    expire()
    lock.release()
    assert row()["owner_token"] is None


@plain
def test_releasing_twice_says_so_and_changes_nothing():
    lock = held()
    lock.release()
    other = held()
    before = row()
    with pytest.raises(LockNotHeld, match="released already") as caught:
        lock.release()
    assert not isinstance(caught.value, LockLost)
    assert row() == before
    other.release()


@plain
def test_who_never_acquired_it_cannot_release_renew_or_have_a_fence():
    held()
    before = row()
    stranger = lease_lock("k", 60)
    for verb in (stranger.release, stranger.renew, lambda: stranger.fence):
        with pytest.raises(LockNotHeld):
            verb()
    assert row() == before


@plain
def test_a_renewal_moves_the_end():
    lock = held(ttl_seconds=600)
    LockRow.objects.update(expires_at=UtcNowPlus(300))
    lock.renew()
    assert 540 < seconds_from_now(row()["expires_at"]) <= 600
    lock.renew(3600)
    assert 3540 < seconds_from_now(row()["expires_at"]) <= 3600
    assert lock.remaining_seconds > 3540


@plain
def test_a_renewal_after_the_end_is_refused_even_if_nobody_came():
    lock = held()
    expire()
    before = row()
    with pytest.raises(LockLost, match="renewal"):
        lock.renew()
    assert row() == before
    with pytest.raises(LockNotHeld):
        lock.release()


@plain
@finding("L20")
def test_an_object_may_be_used_again_but_not_twice_at_once_by_the_same_thread():
    lock = lease_lock("k", 60, 0)
    with lock:
        with pytest.raises(RuntimeError, match="not re-entrant") as caught:
            lock.acquire()
        assert not isinstance(caught.value, LockNotAcquired)
    with lock:
        assert lock.fence == 2


@plain
def test_inside_a_transaction_it_is_refused():
    lock = lease_lock("k", 60)
    with transaction.atomic(), pytest.raises(InsideTransaction, match=r"mutex\(\)"):
        lock.acquire()
    lock.acquire()
    with transaction.atomic(), pytest.raises(InsideTransaction):
        lock.renew()
    lock.release()


@plain
@finding("L14")
def test_a_release_inside_a_transaction_is_refused_and_the_lock_stays():
    lock = held()
    with transaction.atomic(), pytest.raises(InsideTransaction, match="cannot release"):
        lock.release()
    with pytest.raises(LockNotAcquired):
        held()
    lock.release()
    assert held().fence == lock.fence + 1


@real
@row_locks
@finding("L14")
def test_a_try_after_the_end_does_not_wait_for_a_release_that_is_not_committed():
    lock = held(ttl_seconds=0.2)
    with transaction.atomic():
        with suppress(InsideTransaction):
            lock.release()
        # By the database's clock, which runs while the transaction is open.
        wait_until(lambda: seconds_from_now(row()["expires_at"]) < 0, what="the end of the lock")
        trying = Actor(lambda: lease_lock("k", 60, 0).acquire().fence)
        wait_until(lambda: trying.done.is_set() or somebody_waits(), what="the try")
        assert trying.done.is_set(), "it waits for a lock of the row"
    assert trying.result() > lock.fence


@pytest.fixture
def answer_lost():
    """A function: the answer to the next statement with `words` is lost, after the server has done it."""
    with ExitStack() as stack:

        def lose(words, error, also=lambda: None):
            pending = [words]

            def wrapper(execute, sql, params, many, context):
                found = execute(sql, params, many, context)
                if pending and pending[0] in sql:
                    pending.clear()
                    also()
                    raise error
                return found

            stack.enter_context(connection.execute_wrapper(wrapper))

        yield lose


def lost_connection():
    """What the driver says when the connection breaks before the answer has come."""
    if VENDOR in ("mysql", "mariadb"):
        return OperationalError(2013, "Lost connection to server during query")
    return OperationalError("disk I/O error" if VENDOR == "sqlite" else "server closed the connection unexpectedly")


@real
@finding("L18")
@pytest.mark.parametrize("late", [False, True])
def test_a_release_whose_answer_was_lost_is_no_lock_that_was_lost(answer_lost, monkeypatch, late):
    lock = held()
    answer_lost("owner_token", lost_connection())
    if late:
        # Not surely in time by this process's clock, and nobody came.
        monkeypatch.setattr("jobqueue.locks.lease.time", an_hour_later)
    lock.release()
    assert row()["owner_token"] is None


@real
def test_a_release_whose_answer_was_lost_after_the_end_is_told_if_somebody_came(answer_lost, monkeypatch):
    lock = held()
    answer_lost("owner_token", lost_connection(), also=lambda: Actor(held).result())
    monkeypatch.setattr("jobqueue.locks.lease.time", an_hour_later)
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00", "\ud800", 5, None, b"k"])
def test_a_bad_name_is_refused(name):
    with pytest.raises((InvalidType, InvalidValue)):
        lease_lock(name, 60)


@pytest.mark.parametrize("ttl_seconds", [0, -1, float("nan"), float("inf"), 1e10, "60", None, True])
def test_a_bad_ttl_is_refused(ttl_seconds):
    with pytest.raises((InvalidType, InvalidValue)):
        lease_lock("k", ttl_seconds)


@plain
@pytest.mark.parametrize("other", ["K", "k ", "\uff4b", "k\u0301"])
def test_names_that_look_alike_are_two(other):
    held()
    held(other)
    assert LockRow.objects.count() == 2


@real
def test_a_waiter_gets_it_when_it_is_released():
    lock = held()
    waiter = Actor(lambda: lease_lock("k", 60, patient()).acquire().fence)
    assert waiter.stays_away()
    lock.release()
    assert waiter.result() == 2


@plain
def test_skipping_is_a_try_without_waiting():
    held()
    with suppress(LockNotAcquired), lease_lock("k", 60, 0):
        pytest.fail("somebody else holds it")


@real
def test_of_many_who_see_it_free_one_gets_it():
    for prepare in (lambda: None, lambda: expire(), lambda: sweep()):
        prepare()
        outcomes = all_at_once([held] * 6)
        assert sum(isinstance(one, LockNotAcquired) for one in outcomes) == 5
        LockRow.objects.update(expires_at=UtcNowPlus(-1))


@plain
def test_several_locks_are_taken_low_to_high_and_given_back_when_one_is_missing():
    order = []
    a, b = lease_lock("a", 60, 0), lease_lock("b", 60, 0)
    for lock in (a, b):
        lock._prepare = lambda entry, lock=lock, prepare=lock._prepare: (order.append(lock.name), prepare(entry))
    with lock_all(b, a) as found:
        assert found == (b, a)
    assert order == ["a", "b"]
    held("b")
    with pytest.raises(LockNotAcquired), lock_all(b, a):
        pytest.fail("somebody else holds b")
    assert row("a")["owner_token"] is None


@real
@finding("L15")
@pytest.mark.skipif(VENDOR != "postgres", reason="elsewhere a look by key finds the row at once")
def test_a_hot_lock_leaves_no_entries_in_its_key_while_a_snapshot_is_open():
    held().release()
    with connection.cursor() as cursor:
        # The table and its index as they are when they are new.
        cursor.execute("VACUUM FULL job_lock")
    old = connection.copy()
    old.inc_thread_sharing()
    try:
        with old.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT COUNT(*) FROM job_lock")
        for _ in range(1000):
            held().release()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_relation_size('job_lock_pkey') / 8192")
            pages = cursor.fetchone()[0]
    finally:
        old.close()
    assert pages <= 2, "each look for the lock reads all of these"


@plain
def test_the_sweeper_takes_bounded_batches_and_leaves_who_holds():
    for number in range(7):
        held(f"gone-{number}")
        expire(f"gone-{number}")
    lock = held("alive")
    assert sweep(3) == 3
    assert cleaner.sweep_locks(None, using="default", limit=2)["locks_freed"] == 4
    assert [found.pk for found in LockRow.objects.all()] == ["alive"]
    lock.release()


@plain
def test_with_nothing_to_do_the_sweeper_asks_one_question(django_assert_num_queries):
    held()
    with django_assert_num_queries(1):
        assert sweep() == 0


@real
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no rows that somebody else could have locked")
def test_the_sweeper_passes_over_a_row_that_somebody_is_taking():
    held()
    expire()
    with holding(lambda: list(LockRow.objects.select_for_update())):
        assert sweep() == 0
    assert sweep() == 1


@real
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer: nobody can come in between")
def test_a_lock_that_is_made_while_its_deletion_commits_begins_beyond_its_old_fence():
    for _ in range(5):
        held().release()
    old = row()["fence"]
    swept, finish = threading.Event(), threading.Event()

    def slow_sweep():
        with transaction.atomic():
            add_to_floor(LEASE_FLOOR, 0, "default")
            sweep()
            swept.set()
            assert finish.wait(patient())

    sweeper = Actor(slow_sweep)
    assert swept.wait(patient())
    maker = Actor(lambda: lease_lock("k", 60, patient()).acquire().fence)
    maker.is_blocked()
    finish.set()
    sweeper.result()
    assert maker.result() > old


def statements(seen):
    """Without savepoints."""
    return [query["sql"] for query in seen if "job_lock" in query["sql"]]


@plain
def test_acquiring_costs_a_look_and_a_write_and_releasing_a_write():
    held().release()
    with CaptureQueriesContext(connection) as seen:
        held().release()
    assert [sql.split()[0] for sql in statements(seen)] == ["SELECT", "UPDATE", "UPDATE"]


@plain
def test_a_name_that_is_new_is_made_by_one_statement_that_reads_the_floor_itself():
    held("other")
    with CaptureQueriesContext(connection) as seen:
        lock = held()
    assert [sql.split()[0] for sql in statements(seen)] == ["SELECT", "INSERT", "SELECT"]
    assert lock.fence == row()["fence"] == 1


@real
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions that somebody could end")
@pytest.mark.parametrize("noticed", [True, False])
def test_a_session_that_died_is_replaced(noticed):
    connection.ensure_connection()
    kill(session_id())
    if noticed:
        with pytest.raises(Error), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    with lease_lock("k", 60, 5) as lock:
        assert lock.fence


@plain
def test_coroutines_wait_for_each_other_without_a_thread():
    inside, seen = [], []

    async def work(number):
        async with lease_lock("k", 60) as lock:
            assert not inside
            inside.append(number)
            await astay()
            inside.remove(number)
            seen.append(lock.fence)
            await lock.arenew()

    async def run():
        await asyncio.gather(*(work(number) for number in range(4)))

    async_to_sync(run)()
    assert seen == sorted(seen)
    assert len(seen) == 4


@plain
def test_a_coroutine_that_is_cancelled_while_it_waits_leaves_nothing_behind():
    lock = held()

    async def run():
        task = await begun_to_wait(lease_lock("k", 60))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async_to_sync(run)()
    lock.release()
    assert held().fence == lock.fence + 1, "nobody held it in between"


@plain
def test_two_locks_of_one_name_are_refused_together():
    a, b, same = lease_lock("a", 60), lease_lock("b", 60), lease_lock("a", 0.2)
    with pytest.raises(InvalidValue, match="twice"), lock_all(a, b, same):
        pytest.fail("one of them has waited for the end of the other")
    held("a")
