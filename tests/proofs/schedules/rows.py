"""Jobs by the million, filled in with SQL, and the room that their table takes."""

from __future__ import annotations

import os
from datetime import timedelta

from django.db import connection

from jobqueue.db.clock import read_now
from jobqueue.models import Job, JobAttempt
from tests.settings import VENDOR

#: jobs of one statement
CHUNK = 10_000
NUMBERS = "proof_numbers"
TASK = "tests.proofs.schedules.tasks.brief"
#: of so many ended jobs one has a failed attempt
WITH_ATTEMPT = 10
MIB = 1024 * 1024


def run(sql, params=()):
    """One statement; its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall()) if cursor.description else []


def wanted(count):
    """The number of ended jobs: JOBQUEUE_PROVE_ROWS, or this one."""
    return int(os.environ.get("JOBQUEUE_PROVE_ROWS", 0)) or count


def make_numbers():
    """A table with the numbers below CHUNK, doubled until it has them."""
    drop_numbers()
    run(f"CREATE TABLE {NUMBERS} (n int PRIMARY KEY)")
    run(f"INSERT INTO {NUMBERS} (n) VALUES (0)")
    count = 1
    while count < CHUNK:
        run(f"INSERT INTO {NUMBERS} (n) SELECT n + {count} FROM {NUMBERS} WHERE n < {CHUNK - count}")
        count *= 2


def drop_numbers():
    """Away with it."""
    run(f"DROP TABLE IF EXISTS {NUMBERS}")


def last_id():
    """The newest id."""
    return Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def add_ended(count, days, *, state="DONE", queue="default", task=TASK):
    """Jobs that ended at most `days` ago, the older ones first and an hour apart at most; some with an attempt."""
    ended_at = read_now("default") - timedelta(days=days)
    step = timedelta(hours=1) / max(1, count // CHUNK)
    for number, done in enumerate(range(0, count, CHUNK)):
        before = last_id()
        _insert(min(CHUNK, count - done), queue, task, 0.0, status=Job.Status[state], at=ended_at + number * step)
        run(
            "INSERT INTO job_attempt (job_id, attempt, fence, cause, error_class, error) "
            f"SELECT id, 1, 1, 'CODE', 'ValueError', 'boom' FROM job_queue WHERE id > %s AND id %% {WITH_ATTEMPT} = 0",
            [before],
        )


def add_ready(count, job_seconds, *, queue="default"):
    """Jobs that are due."""
    due_at = read_now("default")
    for done in range(0, count, CHUNK):
        _insert(min(CHUNK, count - done), queue, TASK, job_seconds, status=Job.Status.READY, at=due_at)


def _insert(count, queue, task, job_seconds, *, status, at):
    at = Job._meta.get_field("run_at").get_db_prep_save(at, connection)
    ended_at = "NULL" if status == Job.Status.READY else "%s"
    values = [queue, int(status), task, f'{{"args": [{job_seconds}], "kwargs": {{}}}}', at]
    run(
        "INSERT INTO job_queue (queue, status, task, payload, run_at, finished_at) "
        f"SELECT %s, %s, %s, %s, %s, {ended_at} FROM {NUMBERS} WHERE n < {count}",
        values if ended_at == "NULL" else [*values, at],
    )


def refresh(*tables):
    """Let the server count the rows anew, and write what has changed, before anything is measured."""
    for table in tables or (Job._meta.db_table, JobAttempt._meta.db_table):
        statement = {"postgres": "VACUUM (ANALYZE) {}", "sqlite": "ANALYZE {}"}.get(VENDOR, "ANALYZE TABLE {}")
        run(statement.format(table))
    if VENDOR == "postgres":
        run("CHECKPOINT")
    elif VENDOR == "sqlite":
        run("PRAGMA wal_checkpoint(TRUNCATE)")


def size(table="job_queue"):
    """MiB of a table on the disk, and how many of them are free for new rows as far as the server tells."""
    if VENDOR == "postgres":
        # Of a table with partitions the size is that of nothing.
        parts = f"SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{table}')"
        return float(run(f"SELECT coalesce(({parts}), pg_total_relation_size('{table}'))")[0][0]) / MIB, None
    if VENDOR == "sqlite":
        # Of the file: it has hardly anything else.
        pages, free, each = (run(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count", "page_size"))
        return pages * each / MIB, free * each / MIB
    if VENDOR == "mysql":
        run("SET SESSION information_schema_stats_expiry = 0")
    ((used, free),) = run(
        "SELECT data_length + index_length + data_free, data_free FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_name = %s",
        [table],
    )
    return float(used) / MIB, float(free) / MIB


def in_words(found):
    """What size() has found."""
    used, free = found
    return f"{used:,.0f}" + ("" if free is None else f" ({free:,.0f} free)")
