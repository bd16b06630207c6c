"""A soft limit that ends while a query runs costs that job its query, and nobody else anything."""

import pytest

from jobqueue.models import Job
from tests.app import leftovers
from tests.app.models import Account
from tests.factories import job
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server that could be waited for")]
# What psycopg does in C is not interrupted.
IN_PYTHON = {"PSYCOPG_IMPL": "python"}


@pytest.fixture
def run(account, worker):
    """Run what is there, in one thread that keeps its connections."""

    def run(**environment):
        environment |= account.environment(options="?conn_max_age=600")
        assert worker("--drain", "--concurrency", 1, **IN_PYTHON, **environment).wait() == 0

    return run


def of(task):
    return Job.objects.filter(task=task.module_path)


@finding("A4")
def test_the_next_jobs_of_the_thread_find_a_connection_that_works(run):
    for n in range(2):
        leftovers.is_slow.enqueue()
        leftovers.books.enqueue(n)
    run()
    assert set(of(leftovers.is_slow).values_list("status", "cause")) == {(Job.Status.FAILED, "timeout")}
    assert set(of(leftovers.books).values_list("status", flat=True)) == {Job.Status.DONE}
    assert Account.objects.count() == 2


@finding("A4")
def test_the_job_itself_can_save_what_it_has(run):
    job_id = leftovers.is_slow_and_saves.enqueue(7).id
    run()
    assert (job(job_id).status, Account.objects.filter(balance=7).count()) == (Job.Status.DONE, 1)


def test_a_transaction_that_was_not_interrupted_in_a_query_goes_on(run):
    job_id = leftovers.is_slow_in_a_transaction.enqueue(7).id
    run()
    assert (job(job_id).status, Account.objects.filter(balance=7).count()) == (Job.Status.DONE, 2)
