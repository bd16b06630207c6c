"""A relay that remembers how far it has come still finds everything, and does not walk over what was delivered."""

import re

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import OutboxEvent
from jobqueue.outbox import claiming, publish, retry, statements
from jobqueue.outbox.claiming import EventClaimer
from tests.marks import committed
from tests.outbox.helpers import other_connection, say
from tests.settings import VENDOR

pytestmark = committed
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"


@pytest.fixture(autouse=True)
def long_memory(monkeypatch):
    """A memory that lasts as long as the test, however busy the machine is."""
    monkeypatch.setattr(claiming, "CURSOR_SECONDS", 600)


@pytest.fixture
def claimer():
    return EventClaimer("default", lease_seconds=60)


def take(claimer, limit):
    """The ids of the next batch, which is delivered."""
    batch = claimer.claim(limit)
    if batch is None:
        return []
    ids = [event.id for events in batch.lanes.values() for event in events]
    assert statements.mark_processed(ids, batch.token, using="default") == len(ids)
    return ids


def publish_many(count, key):
    with transaction.atomic():
        return [publish("t", n, key) for n in range(count)]


def test_an_event_that_is_due_before_the_last_one_taken_waits_for_a_short_batch_or_a_second(claimer, monkeypatch):
    ids = publish_many(8, None)
    assert take(claimer, 2) == ids[:2]
    late = say("t", "late")
    OutboxEvent.objects.filter(pk=late).update(due_at=UtcNowPlus(-60))
    assert take(claimer, 2) == ids[2:4]
    later = claiming.time.monotonic() + claiming.CURSOR_SECONDS
    monkeypatch.setattr(claiming.time, "monotonic", lambda: later)
    assert late in take(claimer, 2)


def test_a_short_batch_looks_from_the_head_at_once(claimer):
    ids = publish_many(5, None)
    assert take(claimer, 2) == ids[:2]
    late = say("t", "late")
    OutboxEvent.objects.filter(pk=late).update(due_at=UtcNowPlus(-60))
    assert take(claimer, 2) == ids[2:4]
    assert set(take(claimer, 3)) == {late, ids[4]}


def test_an_event_of_a_key_that_is_retried_is_found(claimer):
    ids = publish_many(6, "k")
    OutboxEvent.objects.filter(pk=ids[0]).update(lane=None, due_at=None, failed_at=UtcNowPlus(0))
    assert take(claimer, 2) == ids[1:3]
    assert retry(ids[0])
    found = take(claimer, 2)
    while batch := take(claimer, 2):
        found += batch
    assert sorted(found) == [ids[0], *ids[3:]]


def entries_walked(sql, snapshot, upto):
    """How many index entries lie where this claim looked, dead ones too: the old snapshot sees them as they were."""
    column = "pk" if re.search(r"AS .pk.", sql) else "id"
    looked = re.sub(r"\bLIMIT \d+( FOR UPDATE SKIP LOCKED)?", "", sql)
    with snapshot.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM ({looked}) AS looked WHERE {column} <= {upto}")
        return cursor.fetchone()[0]


@pytest.mark.skipif(VENDOR == "sqlite", reason="has no old snapshots that are kept for others")
@pytest.mark.parametrize("key", [None, "k"])
def test_while_a_snapshot_is_open_a_claim_does_not_walk_over_what_was_delivered(claimer, key):
    publish_many(800, key)
    walked = []
    with other_connection() as snapshot:
        snapshot.set_autocommit(True)
        with snapshot.cursor() as cursor:
            if VENDOR != "postgres":
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if VENDOR == "postgres" else SNAPSHOT)
            cursor.execute("SELECT COUNT(*) FROM job_outbox")
            cursor.fetchall()
        while len(walked) < 7:
            with CaptureQueriesContext(connection) as said:
                ids = take(claimer, 100)
            if not ids:
                # The round begins anew.
                continue
            # Of a key the first event is locked by its id, and what is behind it is looked for.
            looks = [q["sql"] for q in said if re.search(r"LIMIT (99|100)\b", q["sql"]) and "due_at" in q["sql"]]
            assert looks
            walked.append(sum(entries_walked(sql, snapshot, max(ids)) for sql in looks))
    # Its own events, and of a key those of the batch before.
    assert max(walked) <= 200, walked
