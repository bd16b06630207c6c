"""What one job leaves behind in the connection of its thread does not reach the next job."""

import asyncio
import gc
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest
from asgiref.sync import SyncToAsync, sync_to_async
from django.db import DatabaseError, connection, connections
from django.db.backends.signals import connection_created

from jobqueue import enqueue, enqueue_many
from jobqueue.exceptions import TransactionLeftOpen
from jobqueue.models import Job
from jobqueue.transitions import claim
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.batch import calls_of
from jobqueue.worker.run.coroutines import AnyThread, OneThread
from jobqueue.worker.run.perform import Run, perform, perform_coroutine
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.run.timeouts import Together, Watch
from jobqueue.worker.shared.cleanup import clean_connections
from jobqueue.worker.shared.scoreboard import LeaseSlot
from tests.app import leftovers
from tests.app.models import Account
from tests.factories import claim_one, run_lease
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = committed
WAYS = {
    "sqlite": ["begin"],
    "postgres": ["begin", "start transaction", "a failed script"],
    "mysql": ["begin", "start transaction", "a failed script", "autocommit off", "a procedure that fails"],
}
WAYS["mysql"] += ["a second statement", "xa"]
WAYS["mariadb"] = WAYS["mysql"]
has_sessions = pytest.mark.skipif(VENDOR == "sqlite", reason="a connection to SQLite is not kept")


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """Connections are kept from job to job, and look at their settings anew."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 600)


@pytest.fixture
def procedure(sql):
    """A procedure that begins a transaction and fails."""
    if VENDOR in ("mysql", "mariadb"):
        sql(
            "CREATE PROCEDURE leaves_open() BEGIN START TRANSACTION; "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'before the COMMIT'; END"
        )
    yield
    if VENDOR in ("mysql", "mariadb"):
        sql("DROP PROCEDURE leaves_open")


def in_one_thread(work):
    """What `work` gives in a thread of its own, as a job thread is one."""
    found = []

    def run():
        try:
            found.append(work())
        finally:
            close_here()
            close_own_calls()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def close_here():
    """Close what this thread has open."""
    connections.close_all()
    for wrapper in connections.all(initialized_only=True):
        close_kept(wrapper)


def close_own_calls():
    """Close what the thread has open in which the calls of this thread's own event loops have run."""
    from jobqueue.worker.run import call_threads

    if (calls := vars(call_threads._own).get("thread")) is not None:
        calls.submit(close_here).result()
        calls.shutdown()


def close_kept(wrapper):
    """Close a session that was kept for a next job."""
    resume = vars(wrapper).pop("get_new_connection", None)
    if resume is not None:
        with suppress(Exception):
            resume.args[1].close()


def claimed():
    """The leases of all jobs that are due, in their order."""
    names = Job.objects.values_list("queue", flat=True).distinct()
    leases = [lease for name in names for lease in claim(name, 100, worker="w")]
    return sorted(leases, key=lambda lease: lease.job_id)


def run_all():
    """Run what is due as one job thread does, one call after the other; the ends are written by another thread."""

    def work():
        outcomes = []
        leases = claimed_leases[:]
        while leases:
            calls, _ = calls_of([lease for lease in leases if lease.queue == leases[0].queue])
            call = calls[0] if leases[0].queue in ("leftovers", "bookings", "books in a batch") else leases[:1]
            leases = [lease for lease in leases if lease not in call]
            if len(call) == 1:
                outcomes.append(run_lease(call[0]))
            else:
                run = Run(Together([LeaseSlot() for _ in call]), Watch(), lambda: False)
                outcomes += perform(call, run)
        return outcomes

    claimed_leases = claimed()
    outcomes = in_one_thread(work)
    settle(outcomes, SimpleNamespace(finished=0, failed=0, lost=0))
    return outcomes


def leave_by(way):
    leftovers.leaves.enqueue(leftovers.BEGIN[way])


def leave_by_raw_driver(way):
    leftovers.leaves.enqueue(leftovers.BEGIN[way], raw=True)


def leave_without_failing(way):
    leftovers.leaves.enqueue(leftovers.BEGIN[way], fails=False)


def leave_in_a_batch(way):
    enqueue_many("leftovers", [leftovers.BEGIN[way]] * 2)


# Django looks whether a connection that has met an error answers: this one does not.
NOTICED = {("postgres", "a failed script")}


def marked(way, *before):
    marks = () if (VENDOR, way) in NOTICED else (finding("A2"),)
    return pytest.param(*before, way, marks=marks)


CASES = [marked(way, leave_by) for way in WAYS[VENDOR]]
CASES += [marked("begin", leaver) for leaver in (leave_by_raw_driver, leave_without_failing, leave_in_a_batch)]


def book(n):
    leftovers.books.enqueue(n)


def book_in_a_batch(n):
    enqueue("bookings", n)


def book_by_finish(n):
    leftovers.books_and_finishes.enqueue(n)


@has_sessions
@pytest.mark.parametrize(("leaver", "way"), CASES)
def test_a_transaction_that_a_job_leaves_open_in_the_server_swallows_no_later_effect(procedure, leaver, way):
    leaver(way)
    for n in range(3):
        book(n)
    book_in_a_batch(3)
    run_all()
    ends = set(Job.objects.filter(task=leftovers.books.module_path).values_list("status", flat=True))
    assert (ends, sorted(Account.objects.values_list("balance", flat=True))) == ({Job.Status.DONE}, [0, 1, 2, 3])


@has_sessions
@pytest.mark.parametrize("way", [marked(way) for way in WAYS[VENDOR]])
def test_no_order_of_a_later_job_is_lost_in_a_transaction_that_was_left_open(procedure, way):
    leave_by(way)
    for n in range(3):
        leftovers.enqueues.enqueue(n)
    run_all()
    assert Job.objects.filter(task=leftovers.books.module_path).count() == 3


@pytest.mark.parametrize("way", WAYS[VENDOR])
def test_a_job_that_finishes_after_one_that_left_a_transaction_open_has_its_effect_and_its_end(procedure, way):
    leave_by(way)
    for n in range(3):
        book_by_finish(n)
    run_all()
    done = Job.objects.filter(status=Job.Status.DONE)
    assert (done.count(), Account.objects.count()) == (3, 3)


@pytest.mark.skipif(VENDOR != "sqlite", reason="others: above")
def test_a_transaction_that_a_job_leaves_open_on_sqlite_swallows_no_later_effect():
    leave_by("begin")
    book(1)
    run_all()
    assert Account.objects.count() == 1


ENDED = [(["BEGIN", "BOOK", "COMMIT"], True), (["BOOK", "COMMIT"], False)]
UNENDED = [(["BEGIN", "BOOK"], True), (["BOOK"], False)]
if VENDOR in ("mysql", "mariadb"):
    ENDED.append((["SET autocommit=0", "BOOK", "COMMIT"], True))
    UNENDED.append((["SET autocommit=0", "BOOK"], True))


@finding("N2")
@pytest.mark.parametrize(("statements", "autocommit"), UNENDED)
def test_a_job_that_returns_inside_a_transaction_of_its_own_is_not_done(statements, autocommit):
    result = leftovers.books_in.enqueue(statements, 1, autocommit)
    run_all()
    job = Job.objects.get(pk=result.id)
    assert (job.status, Account.objects.count()) == (Job.Status.FAILED, 0)
    assert "TransactionLeftOpen" in job.last_error


@pytest.mark.parametrize(("statements", "autocommit"), ENDED)
def test_a_job_that_has_ended_its_own_transaction_is_done(statements, autocommit):
    result = leftovers.books_in.enqueue(statements, 1, autocommit)
    run_all()
    assert (Job.objects.get(pk=result.id).status, Account.objects.count()) == (Job.Status.DONE, 1)


@finding("N2")
def test_no_job_of_a_batch_that_returns_inside_a_transaction_is_done():
    enqueue_many("books in a batch", [1, 2])
    run_all()
    assert set(Job.objects.values_list("status", flat=True)).isdisjoint({Job.Status.DONE})
    assert Account.objects.count() == 0


@pytest.fixture
def single_thread(monkeypatch):
    """The thread in which asgiref runs calls of event loops of all threads is the test's own: it closes what it has."""
    threads = ThreadPoolExecutor(max_workers=1)
    monkeypatch.setattr(SyncToAsync, "single_thread_executor", threads)
    yield
    threads.submit(close_here).result()
    threads.shutdown()


OWN_LOOP = [way for way in WAYS[VENDOR] if (VENDOR, way) not in NOTICED]


@finding("R-F1")
@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("way", OWN_LOOP)
def test_a_transaction_that_a_job_leaves_open_in_its_own_event_loop_swallows_nothing_of_later_jobs(procedure, way):
    leftovers.leaves_in_own_loop.enqueue(leftovers.BEGIN[way])
    for n in range(3):
        leftovers.books_in_own_loop.enqueue(n)
        leftovers.enqueues_in_own_loop.enqueue(n)
    run_all()
    assert sorted(Account.objects.values_list("balance", flat=True)) == [0, 1, 2]
    assert Job.objects.filter(task=leftovers.books.module_path).count() == 3


@finding("R-F1")
@pytest.mark.usefixtures("single_thread")
def test_a_job_whose_own_event_loop_leaves_a_transaction_open_is_not_done():
    result = leftovers.leaves_in_own_loop.enqueue(["BEGIN"], fails=False)
    run_all()
    job = Job.objects.get(pk=result.id)
    assert (job.status, "TransactionLeftOpen" in job.last_error) == (Job.Status.FAILED, True)


def test_a_job_may_begin_and_end_a_transaction_in_two_calls_of_its_own_event_loop():
    result = leftovers.books_in_a_transaction_of_two_calls.enqueue(7)
    run_all()
    assert (Job.objects.get(pk=result.id).status, Account.objects.count()) == (Job.Status.DONE, 1)


@finding("R-F1")
@pytest.mark.usefixtures("single_thread")
@has_sessions
def test_what_a_job_has_set_in_the_session_of_its_own_event_loop_does_not_reach_the_next():
    for _ in range(2):
        leftovers.sets_zone_in_own_loop.enqueue()
    leftovers.zones.clear()
    run_all()
    assert len(leftovers.zones) == 2
    assert leftovers.zones[0] == leftovers.zones[1]


def test_calls_from_event_loops_of_other_threads_are_cleaned_too(monkeypatch):
    from jobqueue.worker.run.call_threads import serve_other_threads

    monkeypatch.setattr(SyncToAsync, "single_thread_executor", None)
    serve_other_threads()
    with pytest.raises(TransactionLeftOpen):
        asyncio.run(sync_to_async(leftovers.leave)(["BEGIN"], fails=False))
    asyncio.run(sync_to_async(Account.objects.create)(balance=1))
    assert Account.objects.count() == 1
    close_of(SyncToAsync.single_thread_executor)


def call(threads, work, *arguments):
    """What a coroutine gets when it calls this by a thread for calls."""
    return threads.submit(work, *arguments).result()


def close_of(threads):
    """Close what its threads have open."""
    threads.submit(close_here).result()


@pytest.fixture(params=["thread-sensitive", "any thread"])
def threads(request):
    """Threads for calls of coroutines, one of the kind."""
    made = OneThread() if request.param == "thread-sensitive" else AnyThread(max_workers=1)
    yield made
    close_of(made)
    made.shutdown()


@has_sessions
@pytest.mark.parametrize("way", [marked(way) for way in WAYS[VENDOR]])
def test_a_call_of_a_coroutine_that_leaves_a_transaction_open_is_told_so_and_swallows_nothing(threads, procedure, way):
    try:
        with pytest.raises((TransactionLeftOpen, DatabaseError)) as caught:
            call(threads, leftovers.leave, leftovers.BEGIN[way], False, False)
        fails = "fail" in way
        assert caught.type is not TransactionLeftOpen if fails else caught.type is TransactionLeftOpen
    finally:
        call(threads, lambda: Account.objects.create(balance=1))
    close_of(threads)
    assert Account.objects.count() == 1


@finding("A2")
@has_sessions
def test_what_coroutines_have_set_in_a_session_is_gone_when_the_last_one_has_ended(threads):
    statement = STATE[VENDOR][0]
    call(threads, leftovers.leave, [statement], False, False)
    if hasattr(threads, "job_ended"):
        try:
            threads.job_ended(last=True)
        except TypeError:
            threads.job_ended()
    assert call(threads, facts) == in_one_thread(facts)


def facts():
    """All that this session could pass on: settings, locks, what it made for itself."""
    with connection.cursor() as cursor:
        if VENDOR == "postgres":
            cursor.execute("SELECT name, setting FROM pg_settings WHERE name <> 'application_name'")
            settings = dict(cursor.fetchall())
            cursor.execute(
                "SELECT (SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), "
                "to_regclass('pg_temp.leftover')::text, (SELECT COUNT(*) FROM pg_prepared_statements), "
                "(SELECT COUNT(*) FROM pg_listening_channels()), current_user"
            )
            return settings | {"else": cursor.fetchone()}
        cursor.execute("SHOW SESSION VARIABLES")
        own = {"timestamp", "pseudo_thread_id", "rand_seed1", "rand_seed2", "gtid_executed", "gtid_binlog_pos"}
        own |= {"gtid_binlog_state", "gtid_current_pos", "statement_id", "last_gtid", "in_transaction"}
        settings = {name: value for name, value in cursor.fetchall() if name.lower() not in own}
        cursor.execute("SELECT @leftover, IS_USED_LOCK('leftover') = CONNECTION_ID(), DATABASE()")
        settings["else"] = cursor.fetchone()
        with suppress(Exception):
            cursor.execute("SELECT * FROM leftover")
            settings["table"] = cursor.fetchall()
        with suppress(Exception):
            cursor.execute("EXECUTE leftover")
            settings["prepared"] = True
        with suppress(Exception):
            cursor.execute("SELECT COUNT(*) FROM job_worker")
            settings["unlocked"] = cursor.fetchall()
        return settings


STATE = {
    "mysql": [
        "SET SESSION time_zone = '+05:00'",
        "SET SESSION sql_mode = ''",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION TRANSACTION READ ONLY",
        "SELECT GET_LOCK('leftover', 0)",
        "CREATE TEMPORARY TABLE leftover (n INT)",
        "SET @leftover = 1",
        "SET SESSION foreign_key_checks = 0",
        "SET SESSION innodb_lock_wait_timeout = 1",
        "LOCK TABLES job_queue WRITE",
        "SET NAMES latin1",
        "USE information_schema",
        "PREPARE leftover FROM 'SELECT 1'",
        "SET SESSION sql_select_limit = 1",
    ],
    "postgres": [
        "SET TIME ZONE 'Asia/Seoul'",
        "SET search_path = pg_catalog",
        "SET statement_timeout = 77",
        "SET lock_timeout = 77",
        "SET default_transaction_isolation = 'serializable'",
        "SET default_transaction_read_only = on",
        "SELECT pg_advisory_lock(77)",
        "CREATE TEMPORARY TABLE leftover (n INT)",
        "PREPARE leftover AS SELECT 1",
        "LISTEN leftover",
        "SET ROLE pg_monitor",
        "SET synchronous_commit = off",
    ],
    "sqlite": ["PRAGMA foreign_keys = OFF", "PRAGMA query_only = ON", "CREATE TEMPORARY TABLE leftover (n INT)"],
}
STATE["mariadb"] = STATE["mysql"]


def facts_after(*jobs):
    """The facts() that a job finds in the same thread when these tasks were run."""
    for job, arguments in jobs:
        job.enqueue(*arguments)
    leases = claimed()

    def work():
        for lease in leases:
            run_lease(lease)
        return facts()

    return in_one_thread(work)


@finding("A2")
@has_sessions
@pytest.mark.parametrize("statement", STATE[VENDOR])
def test_no_state_of_the_session_is_passed_on(statement, sql):
    if "ROLE" in statement:
        sql("GRANT pg_monitor TO CURRENT_USER")
    assert facts_after((leftovers.leaves, [[statement], False, False])) == in_one_thread(facts)


@pytest.mark.skipif(VENDOR != "sqlite", reason="others: above")
@pytest.mark.parametrize("statement", STATE["sqlite"])
def test_no_state_of_a_connection_to_sqlite_is_passed_on(statement):
    leftovers.leaves.enqueue([statement], fails=False)
    leftovers.leaves.enqueue(["CREATE TEMPORARY TABLE leftover (n INT)"], fails=False)
    book(1)
    run_all()
    assert set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}


@finding("A2")
@pytest.mark.skipif(VENDOR != "postgres", reason="psycopg alone has settings of its own")
@pytest.mark.parametrize("name", ["read_only", "deferrable"])
def test_what_a_job_sets_in_the_driver_is_not_passed_on(name):
    def sets():
        connection.ensure_connection()
        setattr(connection.connection, name, True)

    def work():
        sets()
        clean_connections()
        connection.ensure_connection()
        return getattr(connection.connection, name)

    assert in_one_thread(work) is None


def session_id():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
        return cursor.fetchone()[0]


@has_sessions
def test_a_session_is_kept_as_long_as_conn_max_age_says_and_begins_like_a_new_one():

    created = []

    def work():
        first = session_id()
        clean_connections()
        assert connection.connection is None
        second = session_id()
        connection.close_at = 0
        clean_connections()
        return first, second, session_id()

    def note(connection, **_):
        created.append(threading.get_ident())

    connection_created.connect(note)
    try:
        first, second, third = in_one_thread(work)
    finally:
        connection_created.disconnect(note)
    assert first == second != third
    # Receivers may set something in each session.
    assert len(created) == 3


@has_sessions
def test_a_job_that_needs_no_connection_costs_the_server_nothing():

    leftovers.idles.enqueue()
    (lease,) = claimed()

    def work():
        first = session_id()
        clean_connections()
        kept = vars(connections["default"])["get_new_connection"]
        run_lease(lease)
        assert vars(connections["default"])["get_new_connection"] is kept
        return first, session_id()

    first, second = in_one_thread(work)
    assert first == second


@has_sessions
def test_a_kept_session_that_the_server_has_ended_is_replaced_before_it_is_used():
    from tests.faults.conftest import kill

    def work():
        first = session_id()
        clean_connections()
        kill(first)
        return first, session_id()

    first, second = in_one_thread(work)
    assert first != second


def test_a_lock_by_name_that_a_job_has_not_released_can_be_taken_by_the_next():
    from jobqueue.locks import named_lock

    if VENDOR == "sqlite":
        return

    def work():
        named_lock("leftover", 0).acquire()
        clean_connections()
        with named_lock("leftover", 0):
            return True

    assert in_one_thread(work)


def test_with_debug_a_job_does_not_find_the_queries_of_the_job_before(settings):
    settings.DEBUG = True

    def work():
        Job.objects.count()
        clean_connections()
        left = len(connection.queries)
        Job.objects.count()
        return left, len(connection.queries)

    left, own = in_one_thread(work)
    assert (left, own > 0) == (0, True)


@pytest.mark.parametrize("last", [True, False])
def test_nor_does_a_coroutine_job(settings, last):
    settings.DEBUG = True
    thread = OneThread()
    try:
        thread.submit(Job.objects.count).result()
        assert thread.submit(lambda: len(connection.queries)).result()
        thread.job_ended(last=last)
        assert thread.submit(lambda: len(connection.queries)).result() == 0
    finally:
        close_of(thread)
        thread.shutdown()


@pytest.fixture
def uncollected():
    """No garbage is collected, as in a process that is idle."""
    # What the test's own log keeps has a traceback, too.
    logging.disable()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


@finding("R-F3")
def test_nothing_keeps_the_variables_of_a_coroutine_that_failed(uncollected):
    leftovers.fails_with_something_big_as_a_coroutine.enqueue()
    leftovers.Big.alive.clear()
    outcomes = []

    async def run(lease):
        outcomes.append(await perform_coroutine(lease, LeaseSlot(), lambda: False))

    # As in a worker: what async_to_sync() has returned stays with the call from Python 3.13 on, and so does the result
    # of a task with the task.
    asyncio.run(run(claim_one("default")))
    assert [type(outcome.error) for outcome in outcomes] == [ValueError]
    outcomes.clear()
    assert not leftovers.Big.alive


@finding("R-F3")
def test_a_job_thread_that_waits_keeps_nothing_of_its_last_job(uncollected):
    for how in ("local", "chained"):
        leftovers.fails_with_something_big.enqueue(how)
    leftovers.Big.alive.clear()
    pool = Pool([LeaseSlot() for _ in range(4)], 2, 1, lambda: False)
    leases = claimed()
    pool.take(leases, 4, 0, time.monotonic())
    ended = []
    wait_until(lambda: ended.extend(pool.ended(0.1)) or len(ended) == 2, what="the end of both jobs")
    settle(ended, SimpleNamespace(finished=0, failed=0, lost=0))
    pool.settled(leases)
    ended.clear()
    wait_until(lambda: not leftovers.Big.alive, what="the end of their variables")
