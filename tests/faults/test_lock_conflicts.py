"""Deadlocks and lock waits, provoked with real sessions: redone outside, let out inside a caller's transaction."""

from __future__ import annotations

import threading
import uuid

import pytest
from django.db import OperationalError, connection, connections, transaction

from jobqueue import enqueue
from jobqueue.db import retry
from jobqueue.exceptions import DatabaseBusy
from jobqueue.lockstats import recorder
from jobqueue.models import Job, LockStat
from jobqueue.transitions import ack, ack_many, claim
from tests.blocking import somebody_waits
from tests.factories import claim_one, make_job, make_jobs, state
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer: no two transactions can wait for each other"),
]


def in_thread(work):
    found = []

    def run():
        try:
            found.append(work())
        except Exception as error:
            found.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def ended(thread):
    """Wait for it."""
    thread.join(patient())
    assert not thread.is_alive(), "it waits for ever"


def look_for_deadlocks_after(seconds):
    """How long this session waits for a lock before it looks once; InnoDB looks at once."""
    if VENDOR == "postgres":
        with connection.cursor() as cursor:
            cursor.execute(f"SET deadlock_timeout = '{seconds}s'")


def lock_row(job_id):
    list(Job.objects.select_for_update().filter(pk=job_id))


def test_an_ack_that_is_chosen_as_deadlock_victim_is_redone_and_counted_and_shown(shown):
    low, high = make_jobs(2)
    leases = claim("q", 2, worker="w")
    before = sum(retry.retries.values())

    def ack_both():
        # Not before the other one waits as well, however long that takes it to do.
        look_for_deadlocks_after(round(patient(0.6)))
        return ack_many(leases)

    look_for_deadlocks_after(600)
    with transaction.atomic():
        # The heavier transaction survives on MySQL; on PostgreSQL the one that finds out is the victim.
        for n in range(50):
            enqueue("ballast", n)
        lock_row(high)
        thread, found = in_thread(ack_both)
        wait_until(somebody_waits, what="the ack waiting for the high row")
        lock_row(low)
    ended(thread)
    # The setting ends with the session.
    connection.close()
    assert found == [[]]
    assert [state(low), state(high)] == ["DONE", "DONE"]
    assert sum(retry.retries.values()) > before
    assert shown("ack", "deadlock") >= 1


def test_an_ack_that_runs_into_the_lock_wait_timeout_is_redone(shown):
    job_id = make_job()
    lease = claim_one()
    gave_up, let_go = threading.Event(), threading.Event()

    def impatient():
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '300ms'" if VENDOR == "postgres" else "SET innodb_lock_wait_timeout = 1")
        ack(lease)
        return "acked"

    def on_retry(**facts):
        gave_up.set()
        # Its tries are few.
        let_go.wait(patient())

    from jobqueue.signals import transaction_retried

    transaction_retried.connect(on_retry)
    try:
        with transaction.atomic():
            lock_row(job_id)
            thread, found = in_thread(impatient)
            assert gave_up.wait(patient())
        let_go.set()
        ended(thread)
    finally:
        let_go.set()
        transaction_retried.disconnect(on_retry)
    assert found == ["acked"]
    assert state(job_id) == "DONE"
    assert shown("ack", "lock_timeout") == 1


def test_inside_a_callers_transaction_the_error_is_let_out_and_nothing_is_half_done():
    # No other test has it: InnoDB locks the gap before the entry of a deleted job until that is purged, and then the
    # job without a key would wait, too.
    key = uuid.uuid4().hex
    key_holder = connections["default"].copy()
    try:
        with transaction.atomic():
            pass
        key_holder.set_autocommit(False)
        with key_holder.cursor() as cursor:
            columns = "queue, status, priority, run_at, payload, dedupe_key"
            cursor.execute(
                f"INSERT INTO job_queue({columns}) VALUES ('q', 0, 0, '2020-01-01 00:00:00', '1', %s)", [key.encode()]
            )

        def caller():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SET lock_timeout = '300ms'" if VENDOR == "postgres" else "SET innodb_lock_wait_timeout = 1"
                )
            with transaction.atomic():
                enqueue("q", "first")
                enqueue("q", "second", dedupe_key=key)

        thread, found = in_thread(caller)
        ended(thread)
        assert isinstance(found[0], DatabaseBusy)
        assert isinstance(found[0].__cause__, OperationalError)
        key_holder.rollback()
    finally:
        key_holder.close()
    assert Job.objects.count() == 0
    recorder.flush()
    assert not LockStat.objects.filter(kind="transaction").exists(), "nobody but the caller could redo it"


def test_a_claim_passes_over_rows_that_somebody_else_has_locked():
    first, second = make_jobs(2)
    with transaction.atomic():
        lock_row(first)
        thread, found = in_thread(lambda: [lease.job_id for lease in claim("q", 2, worker="w")])
        ended(thread)
    assert found == [[second]]
    assert [lease.job_id for lease in claim("q", 2, worker="w")] == [first], "a later pass makes up for it"
