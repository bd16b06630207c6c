"""What the tests of statistics share."""

import math
import os
from contextlib import contextmanager

from django.db import connection

from jobqueue.conf import load
from jobqueue.maintenance.stat_rollup import StatRollup, sums_by_name
from jobqueue.models import JobStat, QueueStat
from jobqueue.stats import recorder
from jobqueue.worker.monitor.chores import repeat

ENDS = ("done", "retried", "dead", "canceled", "lost")


def sums():
    """The sums of all rows but totals, in the order of ENDS: by queue and task the same as by queue."""
    columns = ", ".join(f"COALESCE(SUM({name}), 0)" for name in ENDS)
    with connection.cursor() as cursor:
        # One statement: a thread may write between two.
        cursor.execute(f"SELECT {columns} FROM job_stat WHERE span < 4 UNION ALL SELECT {columns} FROM job_stat_queue")
        of_tasks, of_queues = (tuple(map(int, row)) for row in cursor.fetchall())
    assert of_tasks == of_queues
    return of_tasks


def roll_up(using):
    """Add up all that is old enough; the counts."""
    return repeat(StatRollup(), load(), using=using, seconds=math.inf)


@contextmanager
def counted():
    """A block in which this process counts; the rows are there at its end."""
    with recorder.recording("default") as found:
        yield found


def add(span, begins_at, queue="q", task="t", **columns):
    """A row of statistics."""
    given = {"wait_times": {"1": 1}, "run_times": {"2": 1}, "runs": 1, **columns}
    times = {"begins_at": begins_at, "counted_at": begins_at}
    row = JobStat(id=os.urandom(16), span=span, queue=queue, task=task, **times, **given)
    write([row])
    return row


def write(rows):
    """Store rows of tasks, and those of their queues."""
    JobStat.objects.bulk_create(rows, batch_size=500)
    columns = ("span", "begins_at", "counted_at", "queue")
    of_queues = [
        QueueStat(id=os.urandom(16), **dict(zip(columns, name, strict=True)), **counts.columns())
        for name, counts in sums_by_name(rows, columns).items()
    ]
    QueueStat.objects.bulk_create(of_queues, batch_size=500)
