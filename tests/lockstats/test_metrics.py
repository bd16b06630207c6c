"""What locks did is counted, cheaply, and written down in rows that nobody else writes."""

import os
import threading
import time

import pytest
from django.db import connection, transaction

from jobqueue.db import background_writer
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import LockLost, LockNotAcquired
from jobqueue.locks import lease_lock, mutex
from jobqueue.lockstats import recorder
from jobqueue.lockstats.recorder import KEYS_KEPT, KEYS_MAX, OTHER, WINDOW_SECONDS, Buffer, Counters, LockId, waited
from jobqueue.lockstats.report import read_keys, read_kinds
from jobqueue.maintenance import cleaner
from jobqueue.models import LockFinding, LockStat
from tests.locks.helpers import STAY_SECONDS, expire, make_lock, stay
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.settings import VENDOR

KINDS = ["lease", "redis"] + (["named"] if VENDOR != "sqlite" else [])


@pytest.fixture
def server(request, settings):
    """Redis, for the kind that needs it."""
    if "redis" in request.node.callspec.params.values():
        settings.JOBQUEUE = {"REDIS_URL": request.getfixturevalue("redis_url")}


def counters_of(key):
    """What is written down about a key."""
    recorder.flush()
    (found,) = [line for line in read_keys(seconds=60, limit=100, using="default") if line.key == key]
    return found.counters


def micros_since(begun):
    """No less than what was counted meanwhile, which is rounded."""
    return (time.monotonic() - begun) * 1e6 + 10


@committed
@pytest.mark.parametrize("kind", KINDS)
def test_an_acquisition_its_wait_and_its_hold_are_counted(kind, server, monkeypatch):
    # On a busy machine even a free lock takes a while.
    monkeypatch.setattr(recorder, "CONTENDED_SECONDS", 60)
    begun = time.monotonic()
    with make_lock(kind, "k1"):
        stay()
    all_us = micros_since(begun)
    got = counters_of("k1")
    assert (got.acquired, got.contended, got.failed, got.released, got.reentries) == (1, 0, 0, 1, 0)
    assert 1e6 * STAY_SECONDS <= got.held_us == got.held_us_max
    assert 0 < got.wait_us == got.wait_us_max
    assert got.wait_us + got.held_us <= all_us


@committed
@pytest.mark.parametrize("kind", ["lease"])
def test_no_instant_is_counted_as_both_waited_and_held(kind, server, monkeypatch):
    lock = make_lock(kind, "k1")
    begin = lock._entries.begin

    def slowly(entry):
        stay()
        begin(entry)

    monkeypatch.setattr(lock._entries, "begin", slowly)
    begun = time.monotonic()
    with lock:
        pass
    all_us = micros_since(begun)
    got = counters_of("k1")
    assert got.wait_us + got.held_us <= all_us


@committed
@pytest.mark.parametrize("kind", ["lease", "redis"])
def test_a_lock_that_was_not_got_is_a_failure_and_a_late_one_was_contended(kind, server, monkeypatch):
    monkeypatch.setattr(recorder, "CONTENDED_SECONDS", 60)
    with make_lock(kind, "k2"), pytest.raises(LockNotAcquired):
        make_lock(kind, "k2", timeout_seconds=0.05).acquire()
    holder = make_lock(kind, "k2").acquire()
    waiter, tried = make_lock(kind, "k2", timeout_seconds=patient()), threading.Event()
    attempt = waiter._attempt

    def attempt_and_tell(entry, wait_seconds):
        got_it = attempt(entry, wait_seconds)
        tried.set()
        return got_it

    def let_go():
        tried.wait(patient())
        stay()
        holder.release()
        connection.close()

    monkeypatch.setattr(waiter, "_attempt", attempt_and_tell)
    thread = threading.Thread(target=let_go)
    thread.start()
    waiter.acquire().release()
    thread.join()
    got = counters_of("k2")
    assert (got.acquired, got.contended, got.failed) == (3, 1, 1)
    assert got.wait_us_max >= 0.8e6 * STAY_SECONDS


@committed
@pytest.mark.parametrize("verb", ["renew", "release"])
def test_a_holder_that_comes_back_to_a_lock_it_lost_is_a_reentry(verb):
    lock = lease_lock("k3", 60).acquire()
    expire("k3")
    with lease_lock("k3", 60), pytest.raises(LockLost):
        getattr(lock, verb)()
    got = counters_of("k3")
    assert (got.acquired, got.released, got.reentries) == (2, 1, 1)


@committed
@pytest.mark.parametrize("undone", [False, True], ids=["commit", "rollback"])
def test_a_mutex_is_held_until_its_transaction_ends(undone):
    begun = time.monotonic()
    with transaction.atomic():
        with transaction.atomic():
            mutex("k", 4)
        stay()
        transaction.set_rollback(undone)
    all_us = micros_since(begun)
    got = counters_of('["k",4]')
    assert (got.acquired, got.failed, got.released) == (1, 0, 1)
    assert 1e6 * STAY_SECONDS <= got.held_us <= all_us


@committed
def test_a_mutex_of_a_decorated_function_is_held_for_each_call():
    @transaction.atomic
    def work():
        mutex("k", 41)
        stay()

    begun = time.monotonic()
    for _ in range(2):
        work()
    all_us = micros_since(begun)
    got = counters_of('["k",41]')
    assert (got.acquired, got.released) == (2, 2)
    assert 2e6 * STAY_SECONDS <= got.held_us <= all_us


@pytest.mark.django_db
def test_hooks_of_the_code_under_test_are_its_own(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks() as hooks, transaction.atomic():
        mutex("k", 42)
    assert hooks == []


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="a second writer would wait for the file")
def test_a_mutex_that_was_not_got_is_a_failure():
    other = connection.copy()
    with transaction.atomic():
        mutex("k", 5)
        from django.db import connections

        mine, connections["default"] = connections["default"], other
        try:
            with transaction.atomic(), pytest.raises(LockNotAcquired):
                mutex("k", 5, timeout_seconds=0)
        finally:
            connections["default"] = mine
            other.close()
    got = counters_of('["k",5]')
    assert (got.acquired, got.failed, got.released) == (1, 1, 1)


@committed
def test_nothing_is_written_in_a_callers_transaction(django_assert_num_queries):
    with transaction.atomic():
        mutex("k", 6)
        with django_assert_num_queries(0):
            recorder.flush()
    assert not LockStat.objects.exists()
    assert counters_of('["k",6]').acquired == 1


@committed
def test_a_second_flush_writes_totals_and_one_without_news_writes_nothing(django_assert_num_queries):
    for _ in range(2):
        with lease_lock("k7", 60):
            pass
        assert counters_of("k7").acquired in (1, 2)
    assert LockStat.objects.get().acquired == 2
    with django_assert_num_queries(0):
        recorder.flush()


@committed
def test_another_process_writes_rows_of_its_own():
    for _ in range(2):
        with lease_lock("k8", 60):
            pass
        assert counters_of("k8")
        recorder._reset()
    assert LockStat.objects.count() == 2
    assert figures_sum("k8") == 2


def figures_sum(key):
    """Over all processes."""
    return next(line for line in read_keys(seconds=60, limit=9, using="default") if line.key == key).counters.acquired


@committed
def test_a_forked_process_counts_from_the_beginning():
    with lease_lock("k9", 60):
        pass
    connection.close()
    child = os.fork()
    if not child:
        os._exit(recorder.snapshot() != Counters())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert recorder.snapshot().acquired == 1


@committed
def test_counting_can_be_turned_off(settings):
    settings.JOBQUEUE = {"LOCK_METRICS_SECONDS": None}
    with lease_lock("k10", 60):
        pass
    recorder.flush()
    assert recorder.snapshot() == Counters()
    assert not LockStat.objects.exists()


def test_a_lock_that_the_server_waited_for_was_contended_though_it_was_tried_once():
    buffer = Buffer()
    for seconds in (0.001, recorder.CONTENDED_SECONDS * 2):
        buffer.count(LockId("mutex", "k"), waited(seconds, acquired=True))
    ((_, lines),) = buffer.pending()
    assert (lines["mutex", "k"].acquired, lines["mutex", "k"].contended) == (2, 1)


def test_the_most_contended_keys_have_rows_of_their_own_and_the_rest_one_together():
    buffer = Buffer()
    for number in range(KEYS_MAX + 500):
        buffer.count(LockId("lease lock", f"k{number}"), waited(0.001, acquired=True))
    for _ in range(3):
        buffer.count(LockId("lease lock", "k777"), waited(0.001, acquired=False))
    ((_, lines),) = buffer.pending()
    assert len(lines) == KEYS_KEPT + 1
    assert lines["lease lock", "k777"].failed == 3
    assert sum(line.acquired for line in lines.values()) == KEYS_MAX + 500
    # What was given by itself once stays so, or its figures would be counted twice.
    for number in range(100):
        for _ in range(5):
            buffer.count(LockId("lease lock", f"k{number}"), waited(0.001, acquired=False))
    ((_, more),) = buffer.pending()
    assert set(more) == set(lines)
    assert sum(line.failed for line in more.values()) == 503
    assert more["lease lock", OTHER].failed > 0


def test_a_window_ends_after_a_minute_and_is_let_go_when_it_is_written(monkeypatch):
    buffer, now = Buffer(), time.monotonic()
    buffer.count(LockId("lease lock", "a"), waited(0.001, acquired=True))
    monkeypatch.setattr(time, "monotonic", lambda: now + WINDOW_SECONDS + 1)
    # The writer that breaks off has written nothing.
    next(buffer.pending())
    buffer.forget_written()
    buffer.count(LockId("lease lock", "a"), waited(0.001, acquired=True))
    assert [window.number for window, _ in buffer.pending()] == [0, 1]
    buffer.forget_written()
    assert list(buffer.pending()) == []
    assert len(buffer._closed) == 0


@committed
def test_a_flusher_writes_by_itself_and_at_the_end(monkeypatch):
    monkeypatch.setattr(recorder, "is_test_run", lambda: False)
    monkeypatch.setattr(background_writer, "FLUSH_SECONDS", 0.05)
    reports = []
    recorder.report_to(reports.append)
    with lease_lock("k11", 60):
        pass
    wait_until(lambda: reports and reports[-1].acquired and LockStat.objects.filter(acquired=1).exists())
    waits, over = [], recorder._process.writer._over
    wait = over.wait
    monkeypatch.setattr(over, "wait", lambda seconds: waits.append(seconds) or wait(seconds))
    monkeypatch.setattr(background_writer, "FLUSH_SECONDS", 60_000)
    wait_until(lambda: waits and waits[-1] > 1_000, what="the thread to begin its long wait")
    with lease_lock("k11", 60):
        pass
    recorder.close()
    # Which does not wait for ever.
    recorder._process.writer._thread.join(patient())
    assert not recorder._process.writer._thread.is_alive()
    assert LockStat.objects.get().acquired == 2


@committed
def test_old_figures_and_findings_go(settings):
    recorder._process.findings.append(recorder.Finding(LockFinding.Kind.TTL, "x", {}))
    for name in ("new", "old"):
        with lease_lock(name, 60):
            pass
    recorder.flush()
    LockStat.objects.filter(lock_key="old").update(counted_at=UtcNowPlus(-101))
    LockFinding.objects.update(last_seen_at=UtcNowPlus(-101))
    settings.JOBQUEUE = {"LOCK_METRICS_SECONDS": 100}
    for table in (cleaner.CLEANERS["figures"], cleaner.CLEANERS["findings"]):
        assert table.run_once(recorder.load(), using="default").total() == 1
    assert LockStat.objects.get().lock_key == "new"


@committed
def test_kinds_are_summed_and_rates_are_told():
    for _ in range(3):
        with lease_lock("k12", 60):
            with pytest.raises(LockNotAcquired):
                lease_lock("k12", 60, 0).acquire()
    with transaction.atomic():
        mutex("k12")
    recorder.flush()
    lease, row = read_kinds(seconds=60, using="default")
    assert (lease.kind, row.kind) == ("lease lock", "mutex")
    assert lease.failure_rate == 0.5
    assert row.failure_rate == 0
    assert lease.wait_seconds > 0 < lease.held_seconds


def test_counting_costs_microseconds():
    recorder.acquired("lease lock", "k", 0.001, contended=False)
    # Of the processor's time: others may have it for the rest.
    begun = time.thread_time()
    for _ in range(10_000):
        recorder.acquired("lease lock", "k", 0.001, contended=False)
    # About 3 on an idle machine; a row's round trip is a hundred times that.
    assert (time.thread_time() - begun) / 10_000 < 50e-6
