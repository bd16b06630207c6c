"""What the tests of statistics share."""

import os
from contextlib import contextmanager

from django.db.models import Sum

from jobqueue.models import JobStat
from jobqueue.stats import recorder

ENDS = ("done", "retried", "dead", "canceled", "lost")


def sums(**where):
    """The sums of all rows, in the order of ENDS."""
    found = JobStat.objects.filter(**where).aggregate(**{name: Sum(name, default=0) for name in ENDS})
    return tuple(int(found[name]) for name in ENDS)


@contextmanager
def counted():
    """A block in which this process counts; the rows are there at its end."""
    with recorder.recording("default") as found:
        yield found


def add(span, begins_at, queue="q", task="t", **columns):
    """A row of statistics."""
    given = {"wait_times": {"1": 1}, "run_times": {"2": 1}, "runs": 1, **columns}
    names = {"span": span, "begins_at": begins_at, "queue": queue, "task": task}
    return JobStat.objects.create(id=os.urandom(16), **names, **given)
