"""A look for ended jobs that may be deleted reads those, however many ended and waiting jobs stay."""

from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many
from jobqueue.conf import load
from jobqueue.conf.queues import Kept
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job
from jobqueue.retention import windows
from jobqueue.retention.windows import Walk
from tests.marks import committed
from tests.plans.test_plans import plan
from tests.plans.test_redrive_plans import INNODB, analyze, reads, run
from tests.purge import wait_for_purge
from tests.retention.helpers import ended, kept, prune
from tests.settings import FULL, VENDOR

# ANALYZE commits on MySQL.
pytestmark = committed
TURNS, SEED = (40, 500) if FULL else (8, 500)
COPY = (
    "INSERT INTO job_queue (queue, status, priority, run_at, payload, finished_at) "
    "SELECT 'q', %s, %s, run_at, payload, run_at FROM job_queue WHERE queue = 'seed'"
)


# InnoDB counts anew by itself soon after the table has grown.
@pytest.fixture(params=["statistics of the table"] + ["statistics of an empty table"] * (not INNODB))
def many(request, transactional_db):
    """Ended and waiting jobs of two priorities that stay."""
    enqueue_many("seed", [None] * SEED)
    Job.objects.update(run_at=UtcNowPlus(-3600))
    if request.param == "statistics of an empty table":
        analyze()
    with connection.cursor() as cursor:
        for turn in range(TURNS):
            for status in (0, 2, 3, 4):
                cursor.execute(COPY, [status, turn % 2])
    if request.param == "statistics of the table":
        analyze()
    wait_for_purge()
    yield
    if VENDOR == "sqlite":
        # Other tests have no statistics.
        run("DELETE FROM sqlite_stat1")
        run("ANALYZE sqlite_schema")


def walked(size=100, places=None, policy=None):
    settings = load()
    walk = Walk(policy or settings.queue_retention, settings.dedupe_seconds)
    with patch.object(windows, "SIZE", size), patch.object(windows, "STAYING_MAX", 1):
        return [job_id for chosen in walk.chosen("default", places) if chosen for job_id in chosen.ended]


def test_a_walk_of_a_worker_reads_what_it_deletes_and_a_window_of_canceled_jobs(many, settings):
    kept(settings, done="1d", failed="1d", canceled="1d")
    old = {ended(state, 2) for state in ("DONE", "FAILED", "CANCELED") for _ in range(20)}
    found = []
    cost = reads(lambda: found.extend(walked(places={})))
    assert {*found} == old
    # Seeks of 2 queues with 3 states and 2 priorities, 60 jobs, and a window of canceled jobs for each priority: one
    # of these may have been scheduled for later than it was canceled.
    assert cost <= 2 * (60 + 2 * 100) + 200, cost


def test_a_number_is_counted_by_the_index(many, settings):
    Job.objects.filter(queue="q").update(priority=0)
    wait_for_purge()
    kept(settings, done={"KEEP": TURNS * SEED - 20}, failed=None, canceled=None)
    found = []
    cost = reads(lambda: found.extend(walked()))
    assert len(found) == 20
    # Each of those that stay once, by the index alone.
    assert cost <= 2 * TURNS * SEED + 500, cost


def test_each_look_goes_by_the_index_of_the_claim_without_a_sort(many, settings):
    kept(settings, done="1d", failed=None, canceled=None)
    for days in range(2, 9):
        ended("DONE", days)
    with CaptureQueriesContext(connection) as captured:
        assert len(walked(2)) == 7
    looks = [query["sql"] for query in captured if "priority" in query["sql"] and "job_queue" in query["sql"]]
    assert len(looks) >= 7
    for look in looks:
        found = plan(run, look)
        assert "ix_pick" in found, f"{look}\n{found}"
        assert not [word for word in ("filesort", "temp b-tree", "sort key") if word in found], f"{look}\n{found}"


def test_jobs_to_delete_are_locked_and_deleted_by_their_keys(settings):
    kept(settings, done="1d")
    ids = [ended("DONE", 2, attempts=1) for _ in range(3)]
    with CaptureQueriesContext(connection) as captured:
        assert prune() == 3
    assert not Job.objects.filter(pk__in=ids).exists()
    deletes = [
        query["sql"] for query in captured if query["sql"].startswith("DELETE") and "job_lock" not in query["sql"]
    ]
    assert len(deletes) == 2
    # MySQL and MariaDB would scan a small table for a list of keys, in spite of the hint.
    words = "STRAIGHT_JOIN {table} AS t FORCE INDEX (PRIMARY)" if INNODB else "DELETE FROM {table} WHERE"
    for sql, table in zip(deletes, ("job_attempt", "job_queue"), strict=True):
        assert words.format(table=connection.ops.quote_name(table)) in sql
        assert INNODB or " IN (" in sql


def test_states_of_which_everything_is_kept_are_not_looked_at(transactional_db):
    ended("DONE", 400)
    with CaptureQueriesContext(connection) as captured:
        assert walked(policy=lambda queue, state: Kept()) == []
    # The time, and the names of the queues.
    assert len(captured) == 2
