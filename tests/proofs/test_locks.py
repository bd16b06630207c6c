"""What a claim locks in a big table, told by the server."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections, transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.db import vendor
from jobqueue.transitions import claim
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.plans import LockAndStamp, OneStatement
from jobqueue.transitions.claiming.select_then_update import select_then_update
from jobqueue.transitions.claiming.update_returning import update_returning
from tests.marks import committed
from tests.patience import patient
from tests.purge import wait_for_purge
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.timeout(600)]


def fill(full):
    ready, delayed = (100_000, 20_000) if full else (20_000, 4_000)
    for level in range(5):
        enqueue_many("big", range(ready // 5), priority=level)
    enqueue_many("big", range(delayed), priority=9, run_at=datetime.now(UTC) + timedelta(days=1))
    if VENDOR == "postgres":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE job_queue")
    return ready, delayed


def elsewhere(work):
    """Run `work` on another connection; its result, or its error as a string."""
    found = []

    def run():
        try:
            if VENDOR == "postgres":
                with connection.cursor() as cursor:
                    cursor.execute("SET lock_timeout = '2s'")
            elif VENDOR in ("mysql", "mariadb"):
                with connection.cursor() as cursor:
                    cursor.execute("SET innodb_lock_wait_timeout = 2")
            found.append(work())
        except Exception as error:
            found.append(repr(error))
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(patient(30))
    return found[0]


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database for the length of a claim")
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_claim_of_ten_locks_ten_rows_in_a_big_backlog(full, figure, isolation):
    """A claim of 10: locks, a second claimer, an enqueue meanwhile, no sort; both isolation levels."""
    ready, delayed = fill(full)
    wait_for_purge()
    with transaction.atomic():
        set_isolation(isolation)
        begun = time.perf_counter()
        what = ("big", 10, 10, "first", 60, "default")
        if vendor("default").has_update_returning:
            first = update_returning(OneStatement(*what)).leases
        else:
            first = select_then_update(LockAndStamp(*what)).leases
        took = time.perf_counter() - begun
        rows, records, page_ends = locks()
        second = elsewhere(lambda: len(claim("big", 10, worker="second")))
        inserted = elsewhere(lambda: enqueue("big", "late", priority=4))
        transaction.set_rollback(True)
    plan = candidates.due("big", 4, using="default")[:10].explain()
    assert len(first) == 10
    assert {lease.payload for lease in first} == set(range(10))
    assert second == 10
    assert isinstance(inserted, int), inserted
    assert "ix_pick" in plan
    assert "filesort" not in plan.lower()
    assert "Sort" not in plan
    if VENDOR == "mysql":
        assert rows == 10
        assert records <= 11
        assert page_ends <= (3 if isolation == "repeatable read" else 0)
        figure("row locks", rows)
        figure("index record locks", records)
        figure("gap locks at the end of a page", page_ends)
    figure("table", f"{ready} READY in 5 priorities, {delayed} delayed")
    figure("isolation of the session", isolation)
    figure("the second claimer got", second)
    figure("ms of the claim", round(took * 1000, 1))


def set_isolation(level):
    """The level of this transaction, as a project might have set it."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level.upper()}")


def locks():
    """(row locks, index record locks, locks of a page's end) of the job table by performance_schema.

    The end of a page is no row. InnoDB at REPEATABLE READ locks it where the scan goes on to the next page, and where
    a page is split between two locked rows (taking a job makes its row longer), for what may come between them.
    """
    if VENDOR != "mysql":
        return 0, 0, 0
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT index_name = 'PRIMARY', COALESCE(lock_data, '') = 'supremum pseudo-record', COUNT(*) "
            "FROM performance_schema.data_locks "
            "WHERE object_name = 'job_queue' AND object_schema = DATABASE() AND lock_type = 'RECORD' GROUP BY 1, 2"
        )
        counts = {(bool(primary), bool(end)): count for primary, end, count in cursor.fetchall()}
    page_ends = counts.get((True, True), 0) + counts.get((False, True), 0)
    return counts.get((True, False), 0), counts.get((False, False), 0), page_ends
