"""What the tests of statistics share."""

import math
import os
from contextlib import contextmanager

from django.db import connection

from jobqueue.conf import load
from jobqueue.maintenance.stat_rollup import StatRollup
from jobqueue.models import JobStat
from jobqueue.models.stat import QUEUE_SPANS, SPANS
from jobqueue.stats import recorder
from jobqueue.stats.ends import Ends
from jobqueue.worker.monitor.chores import repeat

ENDS = ("done", "retried", "dead", "canceled", "lost")


def sums():
    """The sums of all rows but totals, in the order of ENDS: by queue and task the same as by queue."""
    columns = ", ".join(f"COALESCE(SUM({name}), 0)" for name in ENDS)
    with connection.cursor() as cursor:
        # One statement: a thread may write between two.
        read = f"SELECT {columns} FROM job_stat WHERE span"
        cursor.execute(f"{read} < 4 UNION ALL {read} > 4")
        of_tasks, of_queues = (tuple(map(int, row)) for row in cursor.fetchall())
    assert of_tasks == of_queues
    return of_tasks


def roll_up(using):
    """Add up all that is old enough; the counts."""
    return repeat(StatRollup(), load(), using=using, seconds=math.inf)


def of_tasks():
    """The rows of tasks, totals included."""
    return JobStat.objects.filter(span__lte=JobStat.Span.TOTAL)


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
    columns, of_queues = ("begins_at", "counted_at", "queue"), {}
    for row in rows:
        if row.span in SPANS:
            name = (QUEUE_SPANS[row.span], *(getattr(row, column) for column in columns))
            of_queues.setdefault(name, Ends()).add(Ends.of(row))
    JobStat.objects.bulk_create(
        [
            JobStat(id=os.urandom(16), **dict(zip(("span", *columns), name, strict=True)), **counts.columns())
            for name, counts in of_queues.items()
        ],
        batch_size=500,
    )
