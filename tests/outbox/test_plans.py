"""A relay reads by its indexes, whatever the history."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.db.clock import UtcNow
from jobqueue.models import OutboxEvent
from jobqueue.outbox import publish
from jobqueue.outbox.claiming import Claimer
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


@pytest.mark.skipif(
    VENDOR == "postgres", reason="its planner sorts small tables whatever the index; it locks no ranges"
)
def test_no_look_and_no_claim_sorts_or_reads_the_whole_table(history):
    claimer = Claimer("default", lease_seconds=60)
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


def test_a_claim_costs_the_same_number_of_statements_whatever_the_number_of_keys(history):
    claimer = Claimer("default", lease_seconds=60)
    with CaptureQueriesContext(connection) as seen:
        claimer.claim(100)
    assert len(seen) <= 12, [q["sql"] for q in seen]
