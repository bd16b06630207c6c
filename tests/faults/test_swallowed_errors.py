"""A block of finish() that catches an error by which the server has undone its writes: the job does not end."""

from contextlib import suppress

import pytest
from django.db import Error, connection

from jobqueue.context.job_context import JobContext
from jobqueue.models import Job
from jobqueue.testing import inject
from tests.factories import claim_one, make_job, row
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = committed
# Where no deadlock undoes a transaction, a statement may ask for that.
UNDOES_ALL = (
    "INSERT OR ROLLBACK INTO job_queue (id, queue, payload) SELECT id, queue, payload FROM job_queue"
    if VENDOR == "sqlite"
    else "SELECT 7"
)


def swallow(context):
    with context.finish():
        make_job("effects")
        with suppress(Error), inject("deadlock", at="^SELECT 7$"), connection.cursor() as cursor:
            cursor.execute(UNDOES_ALL, [])


def test_it_is_raised_at_the_end_of_the_block_and_nothing_is_stored():
    make_job()
    context = JobContext(claim_one())
    before = row(context.job_id)
    # Of itself, before the end of the job is written: what comes later tells nobody what went wrong.
    with pytest.raises(Error, match="This was caught, but it has undone the whole transaction"):
        swallow(context)
    assert (row(context.job_id), context.finished) == (before, False)
    assert not Job.objects.filter(queue="effects").exists()
