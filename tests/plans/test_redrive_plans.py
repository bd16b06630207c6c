"""A step of a redrive reads a window of dead letters, however many there are, and however few match."""

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many
from jobqueue.dead_letters import redrive, redrives
from jobqueue.models import Job
from jobqueue.runs import redrive_steps
from jobqueue.runs.job_filter import in_order
from jobqueue.runs.redrive_steps import step
from jobqueue.transitions import ack_many, claim, fail
from tests.marks import committed
from tests.plans.test_plans import plan
from tests.plans.test_stale_statistics import literal, rows_read
from tests.purge import wait_for_purge
from tests.settings import FULL, VENDOR

# ANALYZE commits on MySQL.
pytestmark = committed
INNODB = VENDOR in ("mysql", "mariadb")
TURNS = 40 if FULL else 8
WINDOW, SEED = 250, 500
RARE, COMMON = "0123456789abcdef", "fedcba9876543210"
COPY = (
    "INSERT INTO job_queue (queue, status, priority, run_at, payload, fingerprint) "
    "SELECT 'q', %s, 0, run_at, payload, %s FROM job_queue WHERE queue = 'seed'"
)


STATISTICS = ["statistics of the table", "statistics of an empty table"]
if VENDOR == "postgres":
    # Other planners do not ask whether rows stand in the order of their ids.
    STATISTICS.append("statistics of a table whose rows were written again")


@pytest.fixture(params=STATISTICS)
def dead_letters(request, transactional_db):
    """Dead letters of a kind, thrice as many finished jobs between them, and three dead letters of another kind."""
    enqueue_many("seed", [None] * SEED)
    if request.param == "statistics of an empty table":
        analyze()
    with connection.cursor() as cursor:
        for _ in range(TURNS):
            for status in (3, 2, 2, 2):
                cursor.execute(COPY, [status, COMMON])
    Job.objects.filter(pk__in=list(Job.objects.dead().order_by("-pk").values_list("pk", flat=True)[:3])).update(
        fingerprint=RARE
    )
    if request.param == "statistics of a table whose rows were written again":
        run_write("UPDATE job_queue SET priority = 0 WHERE id % 7 IN (0, 2, 5)")
    if request.param != "statistics of an empty table":
        analyze()
    wait_for_purge()
    yield
    if VENDOR == "sqlite":
        # Other tests have no statistics.
        run("DELETE FROM sqlite_stat1")
        run("ANALYZE sqlite_schema")


def analyze():
    with connection.cursor() as cursor:
        cursor.execute({"sqlite": "ANALYZE", "postgres": "ANALYZE"}.get(VENDOR, "ANALYZE TABLE job_queue, job_audit"))


def run_write(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def run(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def reads(work, table="job_queue"):
    """What the database read for `work`: rows and index entries, or the steps of SQLite's machine.

    PostgreSQL counts by statement: those about `table`.
    """
    if INNODB:
        before = handler_reads()
        work()
        return handler_reads() - before
    if VENDOR == "postgres":
        return sum(rows_read(work, literal, table))
    counted = [0]
    connection.ensure_connection()
    raw = connections["default"].connection
    # For each row it takes about ten steps: the loop, the comparisons and the columns.
    raw.set_progress_handler(lambda: counted.__setitem__(0, counted[0] + 1), 10)
    try:
        work()
    finally:
        raw.set_progress_handler(None, 1)
    return counted[0]


def handler_reads():
    return sum(int(row[1]) for row in run("SHOW SESSION STATUS LIKE 'Handler_read%'"))


def test_each_step_reads_one_window_until_the_few_that_match_are_found(dead_letters, monkeypatch):
    monkeypatch.setattr(redrive_steps, "_WINDOW", WINDOW)
    redrive(fingerprint=RARE)
    steps = []
    costs = [reads(lambda: steps.append(step(using="default"))) for _ in range(TURNS * SEED // WINDOW)]
    assert [one.more for one in steps] == [True] * (len(steps) - 1) + [False]
    # A row by the index, and the row itself for its fingerprint.
    assert max(costs) <= 2 * WINDOW + 60, costs
    assert [(run.redriven, run.state) for run in redrives()] == [(3, "done")]
    assert Job.objects.ready().filter(queue="q", fingerprint=RARE).count() == 3


def test_a_redrive_of_everything_reads_only_what_it_keeps(dead_letters, monkeypatch):
    monkeypatch.setattr(redrive_steps, "_WINDOW", WINDOW)
    monkeypatch.setattr(redrive_steps, "_PORTION", 50)
    redrive(everything=True)
    costs = [reads(lambda: step(using="default", most=50)) for _ in range(5)]
    # Besides the window: the rows of the batch, which are locked and written by their keys.
    assert max(costs) <= 2 * WINDOW + 60 + 50 * (20 if VENDOR == "sqlite" else 5), costs
    assert redrives()[0].redriven == 250


def test_a_window_is_a_seek_without_a_sort(dead_letters):
    middle = Job.objects.dead().order_by("pk").values_list("pk", flat=True)[TURNS * SEED // 2]
    with CaptureQueriesContext(connection) as captured:
        ahead, behind = in_order("default").filter(pk__gt=middle), in_order("default").filter(pk__lt=middle).reverse()
        above = list(ahead.values_list("pk", flat=True)[:5])
        assert above == sorted(above)
        assert len(behind.values_list("pk")[:5]) == 5
    for look in captured.captured_queries:
        found = plan(run, look["sql"])
        assert ("ix_dead" if VENDOR == "postgres" else "ix_lease") in found, found
        assert not [word for word in ("filesort", "temp b-tree", "sort key") if word in found], found
        if VENDOR == "sqlite":
            assert "rowid" in found, found


@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL has ix_dead")
def test_claims_and_acks_write_no_entry_of_the_index_of_dead_letters(transactional_db):
    def size():
        return run("SELECT pg_relation_size('ix_dead')")[0][0]

    with connection.cursor() as cursor:
        cursor.execute("REINDEX INDEX ix_dead")  # entries of other tests are still in it
    before = size()
    for _ in range(5):
        enqueue_many("q", range(1000))
        ack_many(claim("q", 1000, worker="w"))
    assert size() == before
    enqueue_many("q", range(1), max_attempts=1)
    fail(claim("q", worker="w")[0], error=ValueError("x"))
    assert size() > before
