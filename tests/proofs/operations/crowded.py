"""A table with hundreds of thousands of jobs, in many queues: most have ended, and some are due, delayed or dead."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

from django.db import connection

from jobqueue.db.clock import read_now
from jobqueue.models import Job
from tests.proofs.schedules.rows import CHUNK, NUMBERS, drop_numbers, make_numbers, refresh, run

#: of a hundred jobs so many have this status and fall due so many seconds from now
MIX = ((74, Job.Status.DONE, -90_000), (15, Job.Status.READY, -60), (5, Job.Status.READY, 90_000),
       (4, Job.Status.FAILED, -90_000), (2, Job.Status.CANCELED, -90_000))  # fmt: skip
_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


@contextmanager
def crowded(jobs, queues, *, mix=MIX, tasks=400):
    """So many jobs in so many queues, of so many tasks; gone afterwards."""
    make_numbers()
    try:
        for number in range(queues):
            for share, status, seconds in mix:
                _add(jobs * share // (100 * queues), f"crowd{number:03}", status, seconds, tasks)
        refresh()
        yield
    finally:
        run("TRUNCATE TABLE job_queue" if connection.vendor != "sqlite" else "DELETE FROM job_queue")
        drop_numbers()


def _add(count, queue, status, seconds, tasks):
    due_at = Job._meta.get_field("run_at").get_db_prep_save(
        read_now("default") + timedelta(seconds=seconds), connection
    )
    mysql = connection.vendor == "mysql"
    number = f"CAST(n %% {tasks} AS {'CHAR' if mysql else 'TEXT'})"
    named = f"CONCAT('crowd.tasks.work', {number})" if mysql else f"'crowd.tasks.work' || {number}"
    ended = status in _ENDED
    columns = "queue, status, task, payload, run_at" + (", finished_at, attempts" if ended else "")
    for done in range(0, count, CHUNK):
        values = [queue, int(status), '{"args": [], "kwargs": {}}', due_at, *([due_at] if ended else [])]
        run(
            f"INSERT INTO job_queue ({columns}) SELECT %s, %s, {named}, %s, %s"
            f"{', %s, 1' if ended else ''} FROM {NUMBERS} WHERE n < {min(CHUNK, count - done)}",
            values,
        )
