"""Each verb in a real deadlock, and behind a row lock for longer than it may wait: redone, counted, done once."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from jobqueue import enqueue, enqueue_many, transitions
from jobqueue.db import retry as redone
from jobqueue.lockstats import recorder
from jobqueue.lockstats.report import read_redone
from jobqueue.models import Job, JobAttempt, LaneEntry, MutexRow
from jobqueue.signals import transaction_retried
from jobqueue.transitions import claim, fail, reap
from tests.blocking import somebody_waits
from tests.factories import claim_one, expire, make_in_state, make_job, set_columns, state
from tests.faults.test_lock_conflicts import ended, in_thread, lock_row, look_for_deadlocks_after
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer: no two transactions can wait for each other"),
]
CODES = ("40P01", "55P03") if VENDOR == "postgres" else ("1213", "1205")


def leased(**columns):
    make_job(**columns)
    return claim_one()


def failed_head():
    first, second = (enqueue("q", n, ordering_key="k") for n in range(2))
    set_columns(first, max_attempts=1)
    fail(claim_one(), error="boom")
    return first, second


#: what it needs, the verb, the state after it
VERBS = {
    "heartbeat": (leased, lambda lease: transitions.heartbeat(lease, lease_seconds=60), "PROCESSING"),
    "heartbeat_many": (leased, lambda lease: transitions.heartbeat_many([lease], lease_seconds=60), "PROCESSING"),
    "ack": (leased, transitions.ack, "DONE"),
    "ack_many": (leased, lambda lease: transitions.ack_many([lease]), "DONE"),
    "fail": (leased, lambda lease: fail(lease, error="boom"), "READY"),
    "fail_many": (leased, lambda lease: transitions.fail_many([lease], error="boom"), "READY"),
    "snooze": (leased, lambda lease: transitions.snooze(lease, delay_seconds=5), "READY"),
    "release": (leased, transitions.release, "READY"),
    "release_many": (leased, lambda lease: transitions.release_many([lease]), "READY"),
    "cancel_held": (leased, transitions.cancel_held, "CANCELED"),
    "release_held": (lambda: make_in_state("PROCESSING"), transitions.release_held, "READY"),
    "extend_held": (lambda: make_in_state("PROCESSING"), lambda n: transitions.extend_held(n, 600), "PROCESSING"),
    "cancel": (make_job, transitions.cancel, "CANCELED"),
    "discard": (lambda: make_in_state("FAILED"), transitions.discard, "CANCELED"),
    "retry": (lambda: make_in_state("FAILED"), transitions.retry, "READY"),
    "edit": (make_job, lambda job_id: transitions.edit(job_id, queue="slow"), "READY"),
    "resume": (failed_head, lambda ids: transitions.resume("q", "k"), "FAILED"),
}
#: those that are one statement on one row hold nothing while they wait, and so cannot be in a circle
ONE_STATEMENT = {
    "heartbeat",
    "heartbeat_many",
    "ack",
    "ack_many",
    "snooze",
    "release",
    "cancel_held",
    "release_held",
    "extend_held",
}


def word(verb):
    """The word under which it is counted."""
    if verb == "extend_held":
        return "heartbeat"
    return verb.removesuffix("_many").removesuffix("_held")


def counted():
    """verb, error and number of the transactions that were redone."""
    recorder.flush()
    return [(one.verb, one.error, one.redone) for one in read_redone(seconds=3600, using="default")]


def id_of(subject):
    if isinstance(subject, tuple) and not hasattr(subject, "job_id"):
        return subject[0]
    return getattr(subject, "job_id", subject)


def session(**settings):
    with connection.cursor() as cursor:
        for name, value in settings.items():
            cursor.execute(f"SET {name} = {value}")


@contextmanager
def first_retry(then):
    """then(code) with the first transaction that is redone; gives the codes of all."""
    codes = []

    def on_retry(code, **facts):
        codes.append(code)
        if len(codes) == 1:
            then()

    transaction_retried.connect(on_retry)
    try:
        yield codes
    finally:
        transaction_retried.disconnect(on_retry)


def check(verb, subject, result, wanted):
    job_id = id_of(subject)
    assert not isinstance(result, Exception), result
    assert state(job_id) == wanted
    if verb.startswith("fail"):
        assert JobAttempt.objects.filter(job_id=job_id).count() == 1
        assert Job.objects.get(pk=job_id).attempts == 1
    if verb in ("cancel", "discard", "retry", "edit", "release_held", "extend_held", "resume"):
        assert result is True
    if verb.endswith("_many"):
        assert result == []


def as_victim(act, table, lock):
    """act() in a transaction that is undone for a deadlock with one of ours: what it gave, and the codes of retries.

    Ours holds what `lock` locks. The other takes a row before its first statement with `table`, which it executes, and
    so closes the circle, when ours waits for that row.
    """
    MutexRow.objects.bulk_create([MutexRow(lock_key=f"row {n}") for n in range(200)])
    holds = threading.Event()

    def take_another_first(execute, sql, params, many, context):
        if not holds.is_set() and table in sql and connection.in_atomic_block:
            list(MutexRow.objects.select_for_update().filter(lock_key="row 0"))
            holds.set()
            wait_until(somebody_waits, what="the other side of the circle")
        return execute(sql, params, many, context)

    def victim():
        look_for_deadlocks_after(0.05)
        with connection.execute_wrapper(take_another_first):
            return act()

    look_for_deadlocks_after(600)
    with first_retry(lambda: None) as codes:
        with transaction.atomic():
            # InnoDB undoes the transaction that has written less.
            MutexRow.objects.exclude(lock_key="row 0").update(takes=5)
            lock()
            thread, found = in_thread(victim)
            assert holds.wait(patient()), "it has taken no row"
            list(MutexRow.objects.select_for_update().filter(lock_key="row 0"))
        ended(thread)
    # The setting ends with the session.
    connection.close()
    return found[0], codes


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_waited_too_long_for_a_row_is_redone(verb):
    prepare, act, wanted = VERBS[verb]
    subject = prepare()
    let_go, free = threading.Event(), threading.Event()

    def impatient():
        session(**({"lock_timeout": "'300ms'"} if VENDOR == "postgres" else {"innodb_lock_wait_timeout": "1"}))
        return act(subject)

    def then():
        # Its tries are few: the lock is gone before the next one begins.
        let_go.set()
        assert free.wait(patient())

    before = sum(redone.retries.values())
    with first_retry(then) as codes:
        try:
            with transaction.atomic():
                lock_row(id_of(subject))
                thread, found = in_thread(impatient)
                assert let_go.wait(patient()), "it was not redone"
        finally:
            let_go.set()
            free.set()
        ended(thread)
    assert codes == [CODES[1]]
    assert counted() == [(word(verb), "lock_timeout", 1)]
    assert sum(redone.retries.values()) == before + 1
    check(verb, subject, found[0], wanted)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ONE_STATEMENT])
def test_a_verb_that_is_chosen_as_deadlock_victim_is_redone(verb):
    prepare, act, wanted = VERBS[verb]
    subject = prepare()
    result, codes = as_victim(lambda: act(subject), "job_queue", lambda: lock_row(id_of(subject)))
    assert codes[:1] == [CODES[0]]
    assert (word(verb), "deadlock") in {one[:2] for one in counted()}
    check(verb, subject, result, wanted)


@pytest.mark.parametrize("verb", ["claim", "reap"])
def test_a_verb_that_skips_locked_rows_never_waits(verb):
    held_back, free = make_job(), make_job()
    if verb == "reap":
        leases = claim("q", 2, worker="w")
        expire(*leases)

    def act():
        session(**({"lock_timeout": "'300ms'"} if VENDOR == "postgres" else {"innodb_lock_wait_timeout": "1"}))
        return [lease.job_id for lease in claim("q", 2, worker="w")] if verb == "claim" else reap().total

    with first_retry(lambda: None) as codes, transaction.atomic():
        lock_row(held_back)
        thread, found = in_thread(act)
        ended(thread)
        assert found == [[free] if verb == "claim" else 1]
    assert codes == counted() == []


LEVELS = {
    "read committed": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "repeatable read": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_at_a_level_that_was_set_after_the_first_use_of_the_connection(verb, level):
    """For all transactions of the session, as an init_command or a middleware may set it."""
    prepare, act, wanted = VERBS[verb]
    subject = prepare()

    def work():
        words = LEVELS[level].replace("SET TRANSACTION", "SET SESSION CHARACTERISTICS AS TRANSACTION")
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.execute(words if VENDOR == "postgres" else LEVELS[level].replace("SET", "SET SESSION", 1))
        return act(subject)

    thread, found = in_thread(work)
    ended(thread)
    check(verb, subject, found[0], wanted)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "resume"])
def test_a_verb_in_a_callers_transaction_of_a_level_of_its_own(verb, level):
    prepare, act, wanted = VERBS[verb]
    subject = prepare()

    def set_level():
        with connection.cursor() as cursor:
            cursor.execute(LEVELS[level])

    def work():
        if VENDOR != "postgres":
            # MySQL takes it for the next transaction.
            set_level()
        with transaction.atomic():
            if VENDOR == "postgres":
                set_level()
            Job.objects.count()
            return act(subject)

    thread, found = in_thread(work)
    ended(thread)
    check(verb, subject, found[0], wanted)


def test_an_enqueue_of_many_that_is_chosen_as_deadlock_victim_is_added_once():
    result, codes = as_victim(
        lambda: enqueue_many("q", [1, 2, 3], ordering_key="k"),
        "job_key",
        lambda: enqueue("q", 0, ordering_key="k"),
    )
    assert codes[:1] == [CODES[0]]
    assert len(result) == 3
    assert LaneEntry.objects.count() == Job.objects.count() == 4
