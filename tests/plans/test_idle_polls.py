"""An idle worker's look at the queues reads little, whatever was done there, and while an old snapshot is open."""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import pairwise

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, LaneEntry
from jobqueue.ordering.lanes import lane_of
from jobqueue.ordering.promote import promote, promote_next
from jobqueue.transitions import ack_many, claim
from jobqueue.worker.monitor.monitor import Monitor
from jobqueue.worker.shared.queue_choice import Selection, parse
from jobqueue.worker.shared.scoreboard import Hold, Scoreboard
from jobqueue.worker.shared.worker_options import Options
from tests.factories import make_job, set_columns
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.settings import FULL, VENDOR

pytestmark = committed
INNODB = VENDOR in ("mysql", "mariadb")
DONE = 20_000 if FULL else 10_000


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    """Whatever takes time counts as slow: how much of it tells of the machine."""
    if find_spec("jobqueue.transitions.claiming.queue_memory"):
        monkeypatch.setattr("jobqueue.transitions.claiming.queue_memory.QUICK_SECONDS", 0.0)
        monkeypatch.setattr("jobqueue.transitions.claiming.queue_memory._COMMIT_SECONDS", 0.0)


@pytest.fixture
def quick(monkeypatch, slow):
    """However long a look takes."""
    monkeypatch.setattr("jobqueue.transitions.claiming.queue_memory.QUICK_SECONDS", 600.0)


def do_jobs(count, queue="q"):
    """Enqueue, claim and ack."""
    for _ in range(count // 5000):
        enqueue_many(queue, [None] * 5000)
        ack_many(claim(queue, 5000, worker="w"))


@pytest.fixture
def old_snapshot(transactional_db):
    """A transaction that sees, and so keeps, what was there before the test's jobs."""
    other = connections["default"].copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        if INNODB:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        else:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT COUNT(*) FROM job_queue")
    yield other
    other.rollback()
    other.close()


def pages_read(work):
    """The pages that the server reads, from memory or disk, for the statements of `work`."""
    if INNODB:
        before = innodb_pages()
        work()
        return innodb_pages() - before
    with CaptureQueriesContext(connection) as seen:
        work()
    texts = [query["sql"] for query in seen]
    return sum(planned_pages(text) for text in texts if text.lstrip("(").startswith(("SELECT", "UPDATE")))


def reads_nothing_else(seen):
    """Whether the server has read few pages between the last ten looks, while the test asked for nothing."""
    seen.append(innodb_pages())
    return len(seen) > 10 and all(later - earlier < 10 for earlier, later in pairwise(seen[-11:]))


def innodb_pages():
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'")
        return int(cursor.fetchone()[1])


def planned_pages(sql):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        (found,) = cursor.fetchone()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def cheapest(work):
    """Of many times: now and then a whole look is due, and the server has other things to do."""
    work()
    if INNODB:
        # The server counts the pages of all its threads, and its purge may read thousands of them for a while.
        seen = []
        wait_until(lambda: reads_nothing_else(seen), what="a server that does nothing else")
    return min(pages_read(work) for _ in range(20))


@finding("B2")
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite keeps no versions of rows in its tables")
@pytest.mark.parametrize("words", [["q"], ["*"]])
def test_a_look_at_an_idle_queue_does_not_read_what_was_done_since_an_old_snapshot(words, old_snapshot):
    do_jobs(DONE)
    selection = parse(words)
    assert selection.heads("default") == []
    # 20,000 index entries fill 70 pages at least.
    assert cheapest(lambda: selection.heads("default")) < 40


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite keeps no versions of rows in its tables")
def test_a_job_that_comes_is_found_by_a_look_that_does_not_read_the_rest(old_snapshot, monkeypatch):
    do_jobs(DONE)
    selection = parse(["*"])
    make_job()
    assert [head.queue for head in selection.heads("default")] == ["q"]
    ack_many(claim("q", worker="w"))
    monkeypatch.setattr("jobqueue.transitions.claiming.queue_memory.SHARE", 100_000)
    selection.forget()
    selection.heads("default")
    make_job()
    (head,) = selection.heads("default")
    assert (head.queue, head.level, bool(head.all_due)) == ("q", 0, True)


@finding("B2")
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite keeps no versions of rows in its tables")
def test_a_renewal_does_not_read_what_the_worker_has_held_since_an_old_snapshot(old_snapshot, monkeypatch):
    with connection.cursor() as cursor:
        # As it is in quiet hours: no job has a lease.
        cursor.execute("ANALYZE job_queue" if VENDOR == "postgres" else "ANALYZE TABLE job_queue")
    do_jobs(DONE)
    enqueue_many("q", [1, 2])
    leases = claim("q", 2, worker="w")
    scoreboard = Scoreboard(1, 2)
    for lease, slot in zip(leases, scoreboard.lease_slots[0], strict=True):
        slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=600.0, lease_until=0.0)
        slot.hold = Hold.RUNNING
    monitor = Monitor(Options(Selection(), "default", lease_seconds=600.0), scoreboard)
    monkeypatch.setattr(monitor, "_living", lambda: [(0, "w")])
    assert cheapest(monitor.renew) < 90
    assert scoreboard.lease_slots[0][1].lease_until > 0


@finding("L15")
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite keeps no versions of rows in its tables")
def test_the_head_of_a_hot_key_is_found_without_the_places_it_had_since_an_old_snapshot(old_snapshot):
    for _ in range(DONE // 5000):
        enqueue_many("q", [None] * 5000, ordering_key="hot")
    Job.objects.update(status=Job.Status.CANCELED)
    lane = lane_of("q", b"hot")
    promote([lane], using="default")
    assert not LaneEntry.objects.exists()
    enqueue_many("q", [1, 2], ordering_key="hot")
    # The first look of each second is a whole one.
    assert cheapest(lambda: promote_next([("q", b"hot")], using="default")) < (40 if VENDOR == "mariadb" else 60)


@finding("B3")
@pytest.mark.parametrize("words", [[], ["*"]])
def test_names_of_which_only_ended_jobs_are_left_are_not_asked_for_jobs(words):
    for n in range(30):
        enqueue(f"tenant-{n}", None)
        ack_many(claim(f"tenant-{n}", worker="w"))
    enqueue("waiting", None)
    set_columns(enqueue("delayed", None), run_at=UtcNowPlus(3600))
    gated = enqueue("gated", None)
    set_columns(gated, gate=1)
    assert sorted(parse(words).names("default")) == ["delayed", "waiting"]


@finding("B3")
def test_a_look_at_many_idle_names_is_one_statement(django_assert_num_queries):
    for n in range(130):
        enqueue(f"tenant-{n}", None)
        ack_many(claim(f"tenant-{n}", worker="w"))
    with django_assert_num_queries(1):
        assert parse(["*"]).heads("default") == []


def test_a_job_in_a_queue_that_was_idle_is_found_by_the_next_look(quick):
    selection = parse(["*"])
    for name in ("a", "b"):
        enqueue(name, None)
        ack_many(claim(name, worker="w"))
    assert selection.heads("default") == []
    enqueue("b", None)
    assert [head.queue for head in selection.heads("default")] == ["b"]
    assert Job.objects.count() == 3


def test_waiting_names_are_found_by_seeks():
    from jobqueue.transitions.claiming import candidates
    from tests.plans.test_plans import plan

    enqueue_many("done", [None] * 2000)
    ack_many(claim("done", 2000, worker="w"))
    enqueue_many("waiting", [None] * 2000)
    analyze = {"sqlite": "ANALYZE", "postgres": "ANALYZE job_queue"}.get(VENDOR, "ANALYZE TABLE job_queue")

    def run(sql):
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    run(analyze)
    with CaptureQueriesContext(connection) as seen:
        assert candidates.waiting_names(using="default") == ["waiting"]
    found = plan(run, seen.captured_queries[-1]["sql"])
    if INNODB:
        assert "using index for group-by" in found, found
    else:
        assert "ix_pick" in found, found
        assert "seq scan" not in found, found
        assert "  sort" not in found, found
        assert "scan job_queue\n" not in found, found
