"""The archive, a copy of it with partitions, and one who writes to them meanwhile."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection, connections

from jobqueue.db.clock import read_now
from jobqueue.models import ArchivedJob
from tests.proofs.schedules.rows import CHUNK, NUMBERS, TASK, run
from tests.settings import VENDOR

PLAIN, PARTITIONED = "job_archive", "proof_archive"
OLD_DAYS, BOUND_DAYS, YOUNG_DAYS = 60, 30, 1
#: above those of the rows that are filled in
_WRITTEN_ID = 10**12
_COLUMNS = (
    "id, queue, status, priority, run_at, attempts, max_attempts, payload, crashes, created_at, archived_at, task, "
    "finished_at"
)


def ago(days):
    """An instant, as the driver takes it."""
    at = read_now("default") - timedelta(days=days)
    return ArchivedJob._meta.get_field("archived_at").get_db_prep_save(at, connection)


def fill(first_id, count, days):
    """So many archived jobs, moved there some days ago."""
    at = ago(days)
    for done in range(0, count, CHUNK):
        run(
            f"INSERT INTO {PLAIN} ({_COLUMNS}) SELECT {first_id + done} + n, 'default', 2, 0, %s, 0, 25, "
            f"%s, 0, %s, %s, %s, %s FROM {NUMBERS} WHERE n < {min(CHUNK, count - done)}",
            [at, '{"args": [0], "kwargs": {}}', at, at, TASK, at],
        )


def make_partitioned():
    """A copy of the archive: one partition for what is older than BOUND_DAYS, and one for what is younger."""
    drop_partitioned()
    bound = f"'{read_now('default') - timedelta(days=BOUND_DAYS):%Y-%m-%d}'"
    if VENDOR == "postgres":
        run(
            f"CREATE TABLE {PARTITIONED} (LIKE {PLAIN} INCLUDING DEFAULTS, PRIMARY KEY (id, archived_at)) "
            "PARTITION BY RANGE (archived_at)"
        )
        run(f"CREATE TABLE {PARTITIONED}_old PARTITION OF {PARTITIONED} FOR VALUES FROM (MINVALUE) TO ({bound})")
        run(f"CREATE TABLE {PARTITIONED}_later PARTITION OF {PARTITIONED} FOR VALUES FROM ({bound}) TO (MAXVALUE)")
        run(f"CREATE INDEX ON {PARTITIONED} (archived_at)")
    else:
        run(f"CREATE TABLE {PARTITIONED} LIKE {PLAIN}")
        run(f"ALTER TABLE {PARTITIONED} DROP PRIMARY KEY, ADD PRIMARY KEY (id, archived_at)")
        run(
            f"ALTER TABLE {PARTITIONED} PARTITION BY RANGE COLUMNS (archived_at) ("
            f"PARTITION p_old VALUES LESS THAN ({bound}), PARTITION p_later VALUES LESS THAN (MAXVALUE))"
        )
    run(f"INSERT INTO {PARTITIONED} SELECT * FROM {PLAIN}")


def drop_partitioned():
    """Away with it."""
    run(f"DROP TABLE IF EXISTS {PARTITIONED}")


def drop_old():
    """One statement, for all that is older than BOUND_DAYS."""
    if VENDOR == "postgres":
        run(f"DROP TABLE {PARTITIONED}_old")
    else:
        run(f"ALTER TABLE {PARTITIONED} DROP PARTITION p_old")


def older_and_younger(table):
    """How many jobs of a table, without those of the writer, were archived before and since BOUND_DAYS ago."""
    mine = f"SELECT COUNT(*) FROM {table} WHERE id < {_WRITTEN_ID} AND archived_at"
    bound = [ago(BOUND_DAYS)]
    return run(f"{mine} < %s", bound)[0][0], run(f"{mine} >= %s", bound)[0][0]


@contextmanager
def writer(table):
    """Archive one job after another in a thread; yield a list with the seconds of the longest INSERT."""
    longest, ending, begun, failed = [0.0], threading.Event(), threading.Event(), []
    at = ago(YOUNG_DAYS)

    def write():
        number = _WRITTEN_ID
        try:
            while not ending.is_set():
                since = time.monotonic()
                values = [number, at, '{"args": [0], "kwargs": {}}', at, at, TASK, at]
                row = "%s, 'default', 2, 0, %s, 0, 25, %s, 0, %s, %s, %s, %s"
                run(f"INSERT INTO {table} ({_COLUMNS}) VALUES ({row})", values)
                longest[0], number = max(longest[0], time.monotonic() - since), number + 1
                begun.set()
        except Exception as error:
            failed.append(error)
            begun.set()
        finally:
            connections.close_all()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        begun.wait()
        yield longest
    finally:
        ending.set()
        thread.join()
    assert not failed, failed
