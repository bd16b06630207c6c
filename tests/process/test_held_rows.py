"""While rows of any table are locked by somebody else, a worker goes on with what has no part in them."""

from contextlib import contextmanager

import pytest
from django.apps import apps
from django.db import OperationalError, connection

from jobqueue import enqueue, flow
from jobqueue.db.clock import UtcNowPlus
from tests.app import party, tasks
from tests.factories import make_job
from tests.marks import committed
from tests.patience import wait_until
from tests.process.party import ENVIRONMENT, Party
from tests.settings import FULL, VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")]
TABLES = sorted({model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()})
#: each by itself in the whole run; all of them at the same time ask no less, but a failure does not tell which it was
HELD = [[table] for table in TABLES] if FULL else [TABLES]


@contextmanager
def held(tables):
    """All rows that these tables have now are locked; the value is their number."""
    holder = connection.copy()
    with holder.cursor() as cursor:
        if VENDOR != "postgres":
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    holder.set_autocommit(False)
    try:
        yield wait_until(lambda: locked(holder, tables), what="the locks")[0]
    finally:
        holder.rollback()
        holder.close()


def locked(holder, tables):
    """(number of rows,), or nothing if the worker has locked some of them in another order."""
    found = 0
    try:
        with holder.cursor() as cursor:
            for table in tables:
                cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
                found += len(cursor.fetchall())
    except OperationalError:
        holder.rollback()
        return None
    return (found,)


@pytest.mark.parametrize("tables", HELD, ids=lambda tables: tables[0] if len(tables) == 1 else "all tables")
def test_other_queues_keys_limits_groups_events_and_schedules_go_on_while_rows_are_locked(
    worker, gate, evidence, tables
):
    group = worker("--concurrency", 4, JOBQUEUE_TEST_GATE_SWEEP_SECONDS="1", **ENVIRONMENT)
    one = Party("one")
    one.ends()
    # Jobs that run, wait for a limit, a breaker or a later time, and of a paused queue.
    flow.breaker("down").open("for the test")
    tasks.add.using(dependency="down").enqueue(1, 2)
    party.gated_limited.enqueue("held", str(gate))
    party.gated_limited.enqueue("held", str(gate))
    make_job(one.name, run_at=UtcNowPlus(3600))
    flow.pause("paused", reason="for the test")
    enqueue("paused", 1)
    wait_until(lambda: len(evidence.read("start")) == 1, what="the start of the job that has the slot")
    one.add()
    with held(tables) as number:
        print(f"{number} rows are locked")
        # Its end cannot be written.
        gate.touch()
        two = Party("two")
        two.ends()
        assert not group.has_ended()
    one.ends()
