"""`jobs workers` reads the workers it shows and the jobs that they hold, whatever the tables hold."""

import pytest
from django.db import connection

from jobqueue.maintenance.worker_rows import listed
from jobqueue.models import Worker
from jobqueue.transitions import claim
from tests.plans.test_explain_plans import check, on_jobs, sent
from tests.plans.test_redrive_plans import reads
from tests.settings import VENDOR

HELD, STOPPED = 10, 2000
#: of a row: the row, its index entry, and what the server reads to find the first one
READS_PER_ROW = 4


@pytest.fixture
def two_workers(run):
    """Two that run beside many that have stopped, and one that holds many jobs and has no row."""
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "queues": "*", "concurrency": 2}
    Worker.objects.bulk_create(Worker(name=f"w{n}", version="1", **plain) for n in range(2))
    Worker.objects.bulk_create(
        Worker(name=f"old{n}", version="1", stopped_at="2020-01-01T00:00:00Z", **plain) for n in range(STOPPED)
    )
    claim("q", 500, worker="others")
    for number in range(2):
        claim("q", HELD, worker=f"w{number}")
    analyze = {"sqlite": "ANALYZE", "postgres": "ANALYZE"}.get(VENDOR, "ANALYZE TABLE job_queue, job_worker")
    with connection.cursor() as cursor:
        cursor.execute(analyze)


def test_the_jobs_of_all_workers_are_read_by_ix_worker_in_one_statement(run, two_workers):
    def look():
        assert [one.jobs for one in listed(limit=100, stopped=False, using="default")] == [HELD, HELD]

    statements = sent(look)
    assert len(statements) == 2, statements
    (on_leases,) = on_jobs(statements)
    check(run, on_leases)
    assert reads(look) < 500 if VENDOR == "sqlite" else reads(look) <= READS_PER_ROW * (2 * HELD + 4)


def test_workers_that_have_stopped_are_not_read_and_with_all_no_more_than_the_limit(run, two_workers):
    running, every = (
        sent(lambda stopped=stopped: listed(limit=5, stopped=stopped, using="default")) for stopped in (False, True)
    )
    assert (len(running), len(every)) == (2, 3)
    # Rows of job_worker alone, as PostgreSQL counts them; the others count all.
    read = reads(lambda: listed(limit=5, stopped=True, using="default"), "job_worker")
    assert read < STOPPED // 2, read
