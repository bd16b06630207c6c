"""A relay reads by its indexes, whatever the history."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.db.clock import UtcNow
from jobqueue.models import OutboxEvent
from jobqueue.outbox import Relay, delivery, publish, statements
from jobqueue.outbox.claiming import EventClaimer
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db


@pytest.fixture
def history():
    """Many delivered events, a hot key, some others."""
    with transaction.atomic():
        for n in range(300):
            publish("t", n, f"k{n % 30}")
            publish(f"t{n % 3}", n)
        OutboxEvent.objects.update(processed_at=UtcNow(), lane=None, due_at=None)
        for n in range(200):
            publish("t", n, "hot")
        for n in range(20):
            publish("t", n, f"k{n}")
            publish("t", n)
    if VENDOR == "postgres":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE job_outbox")


def explain(sql):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}" if VENDOR != "sqlite" else f"EXPLAIN QUERY PLAN {sql}")
        return "\n".join(" ".join(map(str, row)) for row in cursor.fetchall())


def tabular(sql):
    """The first row of the plan of a logged statement; tokens are bytes there, and any other has the same plan."""
    text = sql.encode("ascii", "replace").decode().replace("%", "%%")
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'FORMAT=TRADITIONAL ' if VENDOR == 'mysql' else ''}{text}")
        names = [column[0].lower() for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))


@pytest.mark.skipif(
    VENDOR == "postgres", reason="its planner sorts small tables whatever the index; it locks no ranges"
)
def test_no_look_and_no_claim_sorts_or_reads_the_whole_table(history):
    claimer = EventClaimer("default", lease_seconds=60)
    with CaptureQueriesContext(
        connection,
    ) as seen:
        batches = [claimer.claim(50) for _ in range(3)]
    assert any(batches)
    reads = [q["sql"] for q in seen if q["sql"].startswith(("SELECT", "WITH")) and "job_outbox" in q["sql"]]
    assert len(reads) >= 4
    for sql in reads:
        plan = explain(sql).lower()
        assert "filesort" not in plan, f"{sql}\n{plan}"
        assert "temporary" not in plan or "union" in plan, f"{sql}\n{plan}"
        assert "temp b-tree" not in plan, f"{sql}\n{plan}"
        assert "scan job_outbox" not in plan.replace("using covering index", "").replace("`", ""), f"{sql}\n{plan}"


def statements_in(seen):
    """What was said about the outbox: begin and commit are left out."""
    return [query["sql"] for query in seen if "job_outbox" in query["sql"]]


@pytest.fixture
def relay(listen, monkeypatch):
    """One that has written its statements, and is at the beginning of a round."""
    monkeypatch.setattr(delivery, "MARK_SECONDS", 600)
    listen("t")
    found = Relay("default", batch_size=100)
    with transaction.atomic():
        for key in (None, "warm", "warm"):
            publish("t", 0, key)
    for _ in range(4):
        found.run_once()
    assert found.counts["delivered"] == 3
    return found


def test_publishing_costs_one_statement_and_with_a_key_two():
    for key, count in ((None, 1), ("k", 2)):
        with transaction.atomic(), CaptureQueriesContext(connection) as seen:
            publish("t", {"n": 1}, key)
        assert len(seen) == count, [query["sql"] for query in seen]


@pytest.mark.parametrize("keys", [0, 100, 300])
def test_a_batch_costs_a_look_a_lock_a_lease_and_a_mark_whatever_the_number_of_keys(relay, keys):
    with transaction.atomic():
        for n in range(100):
            publish("t", n, f"k{n}" if keys else None)
        for n in range(100, keys):
            publish("t", n, f"k{n}")
    with CaptureQueriesContext(connection) as seen:
        assert relay.run_once() == 100
    assert len(statements_in(seen)) == 4, statements_in(seen)


def test_a_batch_of_few_keys_reads_all_their_fronts_by_one_statement_and_marks_an_event_before_the_next(relay):
    with transaction.atomic():
        for n in range(40):
            publish("t", n, f"k{n % 10}")
    with CaptureQueriesContext(connection) as seen:
        assert relay.run_once() == 40
    # A look; the heads, what is behind them, and its contents; the lease; four waves of ten keys.
    assert len(statements_in(seen)) == 5 + 4, statements_in(seen)


def test_with_nothing_to_do_a_relay_asks_one_question(relay):
    with CaptureQueriesContext(connection) as seen:
        assert relay.run_once() == 0
    assert len(seen) == 1
    assert relay.idle


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="only InnoDB locks what an UPDATE reads on its way")
def test_no_index_but_the_key_can_be_used_to_find_events_that_are_written(history):
    claimer = EventClaimer("default", lease_seconds=60)
    # Elsewhere a round may begin so late that one event is left of it.
    claimer._after = statements.LOWEST
    with CaptureQueriesContext(connection) as seen:
        batch = claimer.claim(50)
        ids = [event.id for found in batch.lanes.values() for event in found]
        statements.renew(ids, batch.token, lease_seconds=60, using="default")
        statements.mark_processed(ids[:2], batch.token, using="default")
        statements.release(ids[2:], batch.token, using="default")
    updates = [sql for sql in statements_in(seen) if sql.startswith("UPDATE")]
    assert len(updates) == 4
    for sql in updates:
        assert "FORCE INDEX (PRIMARY)" in sql
        plan = tabular(sql)
        assert (plan["possible_keys"], plan["key"]) == ("PRIMARY", "PRIMARY"), sql


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="the loose scan is theirs")
@pytest.mark.django_db(transaction=True)
def test_a_look_finds_the_first_event_of_each_lane_by_a_seek():
    with transaction.atomic():
        for n in range(1200):
            publish("t", n, f"k{n % 40}")
    with connection.cursor() as cursor:
        # The server seeks where its statistics say that lanes have many events; here they may be of an empty table, or
        # of pages that still hold what earlier tests have deleted.
        cursor.execute("OPTIMIZE TABLE job_outbox")
        cursor.fetchall()
    claimer = EventClaimer("default", lease_seconds=60)
    with CaptureQueriesContext(connection) as seen:
        claimer.claim(50)
    looks = [sql for sql in statements_in(seen) if "MIN(id)" in sql]
    assert looks
    assert all("Using index for group-by" in tabular(sql)["extra"] for sql in looks)


def test_a_claim_costs_the_same_number_of_statements_whatever_the_number_of_keys(history):
    claimer = EventClaimer("default", lease_seconds=60)
    with CaptureQueriesContext(connection) as seen:
        claimer.claim(100)
    assert len(seen) <= 12, [q["sql"] for q in seen]
