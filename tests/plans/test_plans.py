"""Every statement of the hot paths uses its index, in index order, without a sort."""

import re

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, enqueue_many
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.expressions import Unestimated
from jobqueue.models import Job
from jobqueue.transitions import ack_many, claim, heartbeat_many, held_by, reap, release_many
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.select_then_update import lock_aged, lock_due
from tests.marks import finding
from tests.patience import wait_until
from tests.plans.conftest import LEVELS
from tests.settings import VENDOR

EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN ", "mysql": "EXPLAIN FORMAT=TRADITIONAL "}.get(VENDOR, "EXPLAIN ")
UNIQUE = "sqlite_autoindex_job_queue_1" if VENDOR == "sqlite" else "uq_queue_dedupe"
SORTS = ("filesort", "temp b-tree", "sort key", "using temporary")
SCANS = {"sqlite": "scan job_queue\n", "postgres": "seq scan"}


def statements(work):
    """The statements on the job table that `work` sends."""
    with CaptureQueriesContext(connection) as captured:
        work()
    # What PostgreSQL is told for one statement is no part of it.
    texts = [re.sub(r"^(SET LOCAL \w+ = \w+; )+", "", query["sql"]) for query in captured.captured_queries]
    return [text for text in texts if "job_queue" in text and text.lstrip("(").startswith(("SELECT", "UPDATE", "WITH"))]


def some(work):
    """statements(), of which there must be one at least: a loop over none checks nothing."""
    found = statements(work)
    assert found
    return found


def plan(run, statement):
    """The database's plan in lower case, one step per line."""
    return "\n".join(" ".join(str(column) for column in row) for row in run(EXPLAIN + statement)).lower() + "\n"


def check(run, statement, index=None, sorts=SORTS):
    """No sort, no scan of the table; by `index` if one is named."""
    text = plan(run, statement)
    assert not [word for word in sorts if word in text], f"{statement}\n{text}"
    if VENDOR in SCANS:
        assert SCANS[VENDOR] not in text, f"{statement}\n{text}"
    else:
        kinds = [row[4 if VENDOR == "mysql" else 3] for row in run(EXPLAIN + statement)]
        assert "ALL" not in kinds, f"{statement}\n{text}"
    if index:
        assert index in text, f"{statement}\n{text}"


def test_a_claim_reads_by_ix_pick_without_a_sort(run):
    def look():
        with transaction.atomic():
            rows = lock_due("q", 10, candidates.due_levels("q", using="default"), using="default")
            assert len(rows) == 10
            transaction.set_rollback(True)

    found = statements(look)
    assert len(found) >= 2
    for statement in found:
        check(run, statement, None if "max(" in statement.lower() and VENDOR in ("mysql", "mariadb") else "ix_pick")


def test_a_claim_writes_by_the_primary_key(run):
    """Also where the rows it locks and those it writes are found by one statement."""
    found = [text for text in statements(lambda: claim("q", 10, worker="w")) if text.startswith("UPDATE")]
    assert len(found) == 1
    check(run, found[0], {"sqlite": "integer primary key", "postgres": "job_queue_pkey"}.get(VENDOR, "primary"))
    if vendor("default").has_update_returning:
        check(run, found[0], "ix_pick")


def test_the_rows_of_one_level_come_by_ix_pick(run):
    for level in range(5):
        text = vendor("default").lock_rows(candidates.due("q", level, using="default"))[:10]
        with transaction.atomic():
            found = text.explain().lower()
        assert "ix_pick" in found
        assert not [word for word in SORTS if word in found], found


def test_starved_jobs_are_looked_for_by_seeks_and_read_by_ix_pick(run, settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"STARVE_SECONDS": 600}}}
    Job.objects.filter(queue="q", status=0, priority=0, run_at__lt=UtcNowPlus(0)).update(run_at=UtcNowPlus(-3600))

    def look():
        with transaction.atomic():
            assert list(lock_aged("q", 10, using="default")) == [0]
            transaction.set_rollback(True)

    found = statements(look)
    assert len(found) >= 3
    for statement in found:
        check(run, statement, None if "min(" in statement.lower() and VENDOR in ("mysql", "mariadb") else "ix_pick")


def test_an_empty_look_for_starved_jobs_costs_two_seeks_a_level(run, settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"STARVE_SECONDS": 86_400}}}
    found = statements(lambda: list(candidates.aged_levels("q", using="default")))
    # Delayed jobs alone make a level, too.
    assert len(found) == 2 * (LEVELS + 1) + 1
    for statement in found:
        check(run, statement, None if "min(" in statement.lower() and VENDOR in ("mysql", "mariadb") else "ix_pick")


def test_the_names_of_all_queues_come_by_seeks(run):
    assert candidates.queue_names(using="default") == ["other", "q"]
    assert candidates.queue_names(using="default", limit=1) == ["other"]
    assert candidates.queue_names(using="default", after="other") == ["q"]
    assert candidates.queue_names(using="default", after="q") == []
    (statement,) = statements(lambda: candidates.queue_names(using="default"))
    found = plan(run, statement)
    if VENDOR in ("mysql", "mariadb"):
        assert "using index for group-by" in found, found
    else:
        check(run, statement, sorts=())


def test_the_heads_of_all_queues_come_by_one_statement_of_seeks(run):
    heads = candidates.heads(["other", "none", "q"], using="default")
    assert [(head.queue, head.level, bool(head.all_due)) for head in heads] == [("other", 0, True), ("q", 9, False)]
    (statement,) = statements(lambda: candidates.heads(["other", "none", "q"], using="default"))
    found = plan(run, statement)
    assert not [word for word in SORTS if word in found], found
    used = sum("ix_pick" in line for line in found.splitlines())
    assert used == 3, found
    check(run, statements(lambda: candidates.heads(["q"], using="default"))[0], "ix_pick")


def test_a_level_whose_last_job_is_due_is_not_asked_again(run):
    assert len(statements(lambda: next(candidates.due_levels("other", using="default")))) == 1


def test_an_empty_queue_costs_one_seek(run):
    (statement,) = statements(lambda: claim("none", 10, worker="w"))
    check(run, statement)


@pytest.fixture
def leases(run):
    """Ten leases beside 500 of other workers."""
    claim("q", 500, worker="others")
    found = claim("q", 10, worker="planner")
    assert len(found) == 10
    if VENDOR != "sqlite":
        run("ANALYZE TABLE job_queue" if VENDOR in ("mysql", "mariadb") else "ANALYZE job_queue")
    return found


VERBS = {"heartbeat": lambda found: heartbeat_many(found, lease_seconds=60), "release": release_many, "ack": ack_many}
BY_ID = {"sqlite": "integer primary key", "postgres": "job_queue_pkey"}.get(VENDOR, "primary")


@pytest.mark.skipif(VENDOR != "sqlite", reason="the servers analyze their tables by themselves")
def test_in_a_file_that_was_never_analyzed_rows_are_written_by_their_ids(run):
    """Nobody analyzes the file of an application: by the status, each write would read all jobs that wait."""
    run("DELETE FROM sqlite_stat1")
    run("ANALYZE sqlite_schema")
    held = []

    def work():
        held.extend(claim("q", 10, worker="w"))
        heartbeat_many(held, lease_seconds=60)
        release_many(held[:5])
        ack_many(held[5:])
        # The next jobs of ten ordering keys are opened.
        for number in range(10):
            enqueue_many("keys", [1, 2], ordering_key=f"key-{number}")
        ack_many(claim("keys", 10, worker="w"))

    found = [text for text in some(work) if text.startswith("UPDATE")]
    assert len(found) >= 6
    for statement in found:
        check(run, statement, BY_ID, sorts=())


@pytest.mark.parametrize("verb", VERBS)
def test_settling_goes_by_id_and_so_reads_and_locks_no_other_lease(run, leases, verb):
    for statement in some(lambda: VERBS[verb](leases)):
        if VENDOR in ("mysql", "mariadb"):
            assert {row[6 if VENDOR == "mysql" else 5] for row in run(EXPLAIN + statement)} == {"PRIMARY"}, plan(
                run, statement
            )
        else:
            check(run, statement, BY_ID, sorts=())


def test_what_a_worker_holds_is_found_by_ix_worker(run, leases):
    for statement in some(lambda: held_by("planner", using="default")):
        check(run, statement, "ix_worker", sorts=())


def test_reaping_reads_by_ix_lease(run, leases):
    Job.objects.filter(pk__in=[lease.job_id for lease in leases]).update(lock_until="2020-01-01T00:00:00Z")

    def look():
        with transaction.atomic():
            assert reap(limit=5).requeued == 5
            transaction.set_rollback(True)

    selects = [statement for statement in statements(look) if statement.startswith("SELECT")]
    assert selects
    for statement in selects:
        check(run, statement, "ix_lease")


def test_names_with_characters_of_four_bytes_are_found_by_the_same_indexes(run):
    """On MySQL they travel as digits."""
    enqueue("q😀", 1, dedupe_key="plan")
    for statement in some(lambda: enqueue("q😀", 1, dedupe_key="plan")):
        check(run, statement, UNIQUE)
    check(run, some(lambda: candidates.heads(["q😀"], using="default"))[0], "ix_pick")
    assert len(claim("q😀", worker="w😀")) == 1
    for statement in some(lambda: held_by("w😀", using="default")):
        check(run, statement, "ix_worker", sorts=())
    enqueue("q😀", 1)
    text = vendor("default").lock_rows(candidates.due(Unestimated("q😀"), 0, using="default"))[:10]
    with transaction.atomic():
        assert "ix_pick" in text.explain().lower()


def test_a_key_is_found_by_its_unique_index(run):
    enqueue("q", 1, dedupe_key="plan")
    for statement in some(lambda: enqueue("q", 1, dedupe_key="plan")):
        check(run, statement, UNIQUE)


BURST = 20_000


@pytest.fixture
def burst_into_an_emptied_table(transactional_db):
    """Many jobs of one queue, of which the statistics know nothing: they are of jobs of many queues that are gone."""
    copy = (
        "INSERT INTO job_queue (queue, status, priority, run_at, payload) "
        "SELECT CASE WHEN %s THEN 'old' || n %% 500 ELSE 'q' END, CASE WHEN %s THEN 2 ELSE 0 END, 0, "
        "now() - interval '1 hour', '{}' FROM generate_series(1, %s) AS n"
    )
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE job_queue SET (autovacuum_enabled = off)")
        cursor.execute(copy, [True, True, BURST])
        cursor.execute("ANALYZE job_queue")
        cursor.execute("DELETE FROM job_queue")
        wait_until(lambda: is_empty_on_disk(cursor), what="a VACUUM that no older snapshot holds up")
        cursor.execute(copy, [False, False, BURST])
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE job_queue RESET (autovacuum_enabled)")


def is_empty_on_disk(cursor):
    cursor.execute("VACUUM job_queue")
    cursor.execute("SELECT pg_relation_size('job_queue')")
    return cursor.fetchone()[0] == 0


def rows_read_so_far():
    """By all sessions that have ended, of the table of jobs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'job_queue'")
        return int(cursor.fetchone()[0])


@finding("K-C3")
@pytest.mark.skipif(VENDOR != "postgres", reason="other planners do not sort what an index has in order")
@pytest.mark.usefixtures("burst_into_an_emptied_table")
def test_a_claim_after_a_burst_into_an_emptied_table_does_not_sort_what_waits():
    connection.close()
    before = rows_read_so_far()
    leases = claim("q", 100, worker="w")
    assert [lease.job_id for lease in leases] == sorted(lease.job_id for lease in leases)
    assert len(leases) == 100
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_sort")
        assert cursor.fetchone() == ("on",)
    # A session that ends tells what it has read.
    connection.close()
    wait_until(lambda: rows_read_so_far() >= before + 100, what="the statistics of the session")
    assert rows_read_so_far() - before < BURST / 4
