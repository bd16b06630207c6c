"""Lanes are read by their index, whatever the backlog of a key, and written by the key alone."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many
from jobqueue.maintenance import sweeps
from jobqueue.models import Job, LaneEntry
from jobqueue.ordering.lanes import lane_of
from jobqueue.ordering.promote import promote
from jobqueue.transitions import ack_many, claim
from tests.marks import committed, finding
from tests.plans.test_plans import plan
from tests.purge import wait_for_purge
from tests.settings import VENDOR

# ANALYZE commits on MySQL.
pytestmark = committed
INNODB = VENDOR in ("mysql", "mariadb")


@pytest.fixture
def lanes():
    """A hot key, and some with a few jobs; the heads are running."""
    enqueue_many("q", range(2000), ordering_key="hot")
    for key in range(50):
        enqueue_many("q", range(3), ordering_key=f"k{key}")
    with connection.cursor() as cursor:
        for table in ("job_lane", "job_queue"):
            cursor.execute({"sqlite": "ANALYZE", "postgres": f"ANALYZE {table}"}.get(VENDOR, f"ANALYZE TABLE {table}"))
    return claim("q", 100, worker="w")


def run(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def sent(work):
    with CaptureQueriesContext(connection) as captured:
        work()
    return [query["sql"] for query in captured.captured_queries if "job_lane" in query["sql"]]


def test_a_look_at_lanes_seeks_each_by_its_index(lanes):
    looks = [text for text in sent(lambda: ack_many(lanes)) if text.startswith("SELECT p.id")]
    assert len(looks) == 4, "two before the lock and two after it"
    for text in looks:
        found = plan(run, text)
        assert "ix_lane_entry" in found, found
        assert "filesort" not in found
        assert "temp b-tree" not in found


@finding("B1")
@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL plans each SELECT of a UNION by itself")
def test_a_look_at_500_lanes_is_planned_as_one_step(lanes):
    from jobqueue.ordering.lanes import next_entries

    def steps(count):
        (look,) = sent(lambda: next_entries(dict.fromkeys(range(count), 0), using="default"))
        return [row for row in run("EXPLAIN " + look) if "->" in row[0]]

    assert len(steps(500)) < 10


def test_the_cost_of_a_look_does_not_grow_with_the_lane(lanes):
    if not INNODB:
        pytest.skip("rows read by index are counted by InnoDB")
    wanted = [lane_of("q", b"hot")]
    promote(wanted, using="default")
    before = handler_reads()
    promote(wanted, using="default")
    assert handler_reads() - before < 30


@pytest.mark.skipif(not INNODB, reason="rows read by index are counted by InnoDB")
def test_other_keys_read_no_more_beside_a_hot_key_than_without(transactional_db):
    def reads(queue):
        Job.objects.all().delete()
        LaneEntry.objects.all().delete()
        wait_for_purge()
        # In either queue, so that the tables are of one size: an UPDATE of 21 jobs scans a small table and seeks in
        # a larger one.
        enqueue_many(queue, range(2000), ordering_key="hot")
        for key in range(20):
            enqueue_many("q", range(3), ordering_key=f"k{key}")
        before = handler_reads()
        for _ in range(3):
            # The hot key's own job is one of those that are claimed, so each round takes one more.
            ack_many(claim("q", 21, worker="w"))
        return handler_reads() - before

    # Entries that the server has not purged yet are read, too: the lowest of some runs is what the statements cost.
    without, beside = (min(reads(queue) for _ in range(3)) for queue in ("elsewhere", "q"))
    assert Job.objects.exclude(status=Job.Status.DONE).exclude(ordering_key=b"hot").count() == 0
    assert beside <= 1.2 * without + 30, (without, beside)


def handler_reads():
    rows = run("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for name, value in rows if name in ("Handler_read_next", "Handler_read_key"))


def test_a_sweep_over_lanes_seeks_each_of_them(lanes):
    for look in sent(lambda: sweeps.OrderingSweep().run_once(None, using="default")):
        assert "ix_lane_entry" in plan(run, look)


def test_a_hundred_lanes_go_on_with_the_same_number_of_statements_as_one(lanes):
    hot = [lease for lease in lanes if lease.payload == 0][:1]
    one = len(sent(lambda: ack_many(hot)))
    many = len(sent(lambda: ack_many([lease for lease in lanes if lease not in hot])))
    assert many == one
