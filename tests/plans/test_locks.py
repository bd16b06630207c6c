"""How much a claim locks and reads, by the server's own account."""

import pytest
from django.db import connection, transaction

from jobqueue import enqueue
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job
from jobqueue.transitions import claim
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.select_then_update import lock_aged, lock_due
from tests import memories
from tests.plans.conftest import LEVELS, READY
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ"]
mysql_only = pytest.mark.skipif(VENDOR != "mysql", reason="only MySQL has performance_schema.data_locks")
mysql_family = pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="counters of InnoDB")


def use(level):
    """Give this session an isolation level, as OPTIONS["isolation_level"] does."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    connection.isolation_level = level.lower()


@pytest.fixture(params=ISOLATIONS)
def isolation(request, backlog):
    """The isolation level of the session."""
    before = connection.isolation_level
    use(request.param)
    yield request.param
    use(before or "READ COMMITTED")


def lock(limit):
    """What claim locks, inside the open transaction."""
    return lock_due("q", limit, candidates.due_levels("q", using="default"), using="default")


def locks_held(run):
    """Record locks of this connection on the job table: (on index entries, on rows).

    Without the ends of pages, which a range across two pages locks as well.
    """
    rows = run(
        "SELECT index_name, COUNT(*) FROM performance_schema.data_locks WHERE object_schema = DATABASE() AND "
        "object_name = 'job_queue' AND lock_type = 'RECORD' AND "
        "COALESCE(lock_data, '') <> 'supremum pseudo-record' AND thread_id = PS_CURRENT_THREAD_ID() GROUP BY index_name"
    )
    counts = dict(rows)
    on_rows = counts.pop("PRIMARY", 0)
    return sum(counts.values()), on_rows


@mysql_only
def test_a_claim_of_ten_locks_ten_rows_and_one_more_index_entry(run, isolation):
    with vendor("default").transaction(connection):
        assert len(lock(10)) == 10
        on_index, on_rows = locks_held(run)
        transaction.set_rollback(True)
    assert on_index <= 11
    assert on_rows <= 10


@mysql_only
def test_the_same_holds_when_the_transaction_itself_has_that_isolation(run, isolation):
    with transaction.atomic():
        lock(10)
        on_index, on_rows = locks_held(run)
        transaction.set_rollback(True)
    assert on_index <= 11
    assert on_rows <= 10


@mysql_only
def test_a_claim_over_two_levels_locks_one_more_entry_per_level(run, isolation):
    count = READY // LEVELS + 5
    with vendor("default").transaction(connection):
        assert len(lock(count)) == count
        on_index, on_rows = locks_held(run)
        transaction.set_rollback(True)
    assert on_index <= count + 2
    assert on_rows <= count


@pytest.fixture
def starved(run, settings):
    """Three jobs of the lowest level and two of the next have waited for too long."""
    settings.JOBQUEUE = {"QUEUES": {"q": {"STARVE_SECONDS": 600}}}
    for level, count in ((0, 3), (1, 2)):
        ids = Job.objects.filter(queue="q", status=0, priority=level).order_by("-id").values_list("pk", flat=True)
        Job.objects.filter(pk__in=list(ids[:count])).update(run_at=UtcNowPlus(-3600))


@mysql_only
def test_a_claim_that_takes_starved_jobs_first_locks_one_more_entry_per_level(run, starved, isolation):
    memories.reset()
    with vendor("default").transaction(connection):
        first = lock_aged("q", 10, using="default")
        on_index, on_rows = locks_held(run)
        transaction.set_rollback(True)
    assert {level: len(rows) for level, rows in first.items()} == {0: 3, 1: 2}
    assert on_index <= 5 + 2
    assert on_rows <= 5


@mysql_only
def test_an_idle_claim_locks_nothing(run, isolation):
    with vendor("default").transaction(connection):
        assert not list(candidates.due_levels("empty", using="default"))
        assert locks_held(run) == (0, 0)


@mysql_family
def test_a_second_claimer_gets_its_own_ten_and_enqueue_goes_through(run, isolation):
    def second():
        use(isolation)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 2")
        for priority in range(-1, LEVELS):
            enqueue("q", "late", priority=priority)
        return claim("q", 10, worker="second")

    begin = lambda: vendor("default").transaction(connection)  # noqa: E731  as claim() begins
    with holding(
        lambda: [row.pk for row in lock(10)], commit=False, session=lambda: use(isolation), begin=begin
    ) as first:
        leases = Actor(second).result()
    assert len(first) == 10
    assert len(leases) == 10
    assert not {lease.job_id for lease in leases} & set(first)


@mysql_family
def test_a_claim_of_ten_reads_few_entries_whatever_the_backlog(run, isolation):
    lock_once(10)  # statistics and caches
    run("FLUSH STATUS")
    lock_once(10)
    read = sum(int(row[1]) for row in run("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    assert read < 120


def lock_once(limit):
    with vendor("default").transaction(connection):
        lock(limit)
        transaction.set_rollback(True)


@mysql_family
def test_innodb_counts_few_locked_rows(run, isolation):
    with vendor("default").transaction(connection):
        lock(10)
        rows = run(
            "SELECT trx_rows_locked FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = CONNECTION_ID()"
        )
        transaction.set_rollback(True)
    # It counts index entries and rows, and on MariaDB the gap behind the last one.
    assert rows[0][0] <= 25


@pytest.mark.skipif(VENDOR != "postgres", reason="EXPLAIN ANALYZE tells the rows that were locked")
def test_postgresql_locks_ten_rows(run):
    rows = vendor("default").lock_rows(candidates.due("q", LEVELS - 1, using="default"))[:10]
    with transaction.atomic():
        text = rows.explain(analyze=True)
        transaction.set_rollback(True)
    locked = next(line for line in text.splitlines() if "LockRows" in line)
    scanned = next(line for line in text.splitlines() if "ix_pick" in line)
    assert " rows=10 " in locked.split("actual")[1]
    assert " rows=10 " in scanned.split("actual")[1]
