"""Thousands of keys that wait cost an idle relay next to nothing, and keep nobody else waiting."""

import random
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import OutboxEvent
from jobqueue.outbox import Relay, publish, statements
from tests.factories import now
from tests.marks import finding
from tests.outbox.helpers import drain, pending, say

pytestmark = pytest.mark.django_db
CROWD = 2500


def publish_to(keys, topic="t"):
    with transaction.atomic():
        return [publish(topic, n, key) for n, key in enumerate(keys)]


def put_off(seconds, **conditions):
    """Let pending events wait."""
    return OutboxEvent.objects.filter(lane__isnull=False, **conditions).update(due_at=UtcNowPlus(seconds))


@pytest.fixture
def later(monkeypatch):
    """later(seconds): the relay's own clock goes on by so much; the database's does not."""
    from jobqueue.outbox import claiming

    real, ahead = claiming.time.monotonic, [0.0]
    monkeypatch.setattr(claiming.time, "monotonic", lambda: real() + ahead[0])

    def move(seconds):
        ahead[0] += seconds

    return move


@pytest.fixture
def waiting(listen):
    """Keys whose events wait for an hour, and what a relay delivers after it has seen them."""
    heard, due_at = listen("t"), now() + timedelta(hours=1)
    OutboxEvent.objects.bulk_create(
        OutboxEvent(
            topic="t", key=f"w{n}".encode(), payload=n, lane=statements.key_lane(f"w{n}".encode()), due_at=due_at
        )
        for n in range(CROWD)
    )
    return heard


@pytest.fixture
def relay(waiting):
    """One that knows that they wait."""
    found = Relay("default")
    for _ in range(3):
        drain(found)
    return found


def statements_of_a_round(relay):
    with CaptureQueriesContext(connection) as seen:
        drain(relay)
    return [query["sql"] for query in seen if "job_outbox" in query["sql"]]


@finding("R1")
def test_a_round_of_keys_that_wait_costs_few_statements(relay):
    said = statements_of_a_round(relay)
    assert len(said) <= 10, said


@finding("R1")
def test_a_first_round_reads_a_window_of_keys_at_a_time(waiting):
    relay = Relay("default")
    drain(relay)
    said = statements_of_a_round(relay)
    assert len(said) <= 4 * CROWD / statements.WINDOW + 20, len(said)


def test_a_new_key_is_delivered_in_the_next_round_with_all_its_events_in_order(relay, waiting):
    publish_to(["new"] * 250)
    drain(relay)
    assert [event.payload for event in waiting] == list(range(250))


def test_an_event_without_key_is_delivered_in_the_next_round(relay, waiting):
    say("t", "alone")
    drain(relay)
    assert [event.payload for event in waiting] == ["alone"]


def test_an_event_behind_one_that_waits_waits_too(relay, waiting):
    say("t", "behind", "w7")
    drain(relay)
    assert waiting == []
    put_off(-1, key=b"w7")
    drain(Relay("default"))
    assert [event.payload for event in waiting] == [7, "behind"]


@pytest.mark.parametrize("seconds", [6.5, 3700.0])
def test_what_is_due_earlier_than_was_seen_is_found_by_the_next_revisit(relay, waiting, later, seconds):
    assert put_off(-1, key__in=[b"w1", b"w2"]) == 2
    drain(relay)
    assert waiting == []
    later(seconds)
    drain(relay)
    assert sorted(event.payload for event in waiting) == [1, 2]


def test_a_wait_that_ends_is_seen_when_it_ends(waiting, later):
    put_off(2.0, key=b"w5")
    relay = Relay("default")
    for _ in range(3):
        drain(relay)
    put_off(-1, key=b"w5")
    later(2.1)
    drain(relay)
    assert [event.payload for event in waiting] == [5]


def test_ranges_are_forgotten_when_few_keys_wait(relay, waiting, later):
    OutboxEvent.objects.exclude(key__in=[f"w{n}".encode() for n in range(10)]).delete()
    later(60)
    for _ in range(3):
        drain(relay)
    put_off(-1)
    drain(relay)
    assert len(waiting) == 10


def test_everything_arrives_in_order_whatever_waits(relay, waiting, later):
    rng = random.Random(7)
    for _ in range(12):
        keys = [f"w{rng.randrange(CROWD)}" for _ in range(40)] + [f"n{rng.randrange(9)}" for _ in range(60)]
        publish_to(keys)
        some = [f"w{rng.randrange(CROWD)}".encode() for _ in range(100)]
        put_off(-1, key__in=some)
        later(rng.choice([0.1, 3, 7]))
        for _ in range(rng.randrange(1, 20)):
            relay.run_once()
    put_off(-1)
    later(60)
    drain(relay)
    later(60)
    drain(relay)
    assert pending() == []
    by_key = {}
    for event in waiting:
        by_key.setdefault(event.key, []).append(event.id)
    assert all(ids == sorted(set(ids)) for ids in by_key.values())
    assert sum(map(len, by_key.values())) == CROWD + 1200


@pytest.fixture
def scans(monkeypatch):
    """The ids behind which the relay has looked for new events."""
    found, real = [], statements.published

    class Noted:
        def __init__(self, *given):
            self.statement = real(*given)

        def rows(self, since):
            found.append(since)
            return self.statement.rows(since=since)

    monkeypatch.setattr(statements, "published", Noted)
    return found


@finding("K-C4")
@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "that another relay delivered"])
def test_events_are_not_read_again_and_again(key, relay, waiting, later, scans):
    for n in range(20):
        say("t", n, key)
    if key is not None:
        OutboxEvent.objects.filter(key=b"k").update(lane=None)
    last = statements.last_id("default")
    for _ in range(3):
        drain(relay)
        later(3)
    assert scans[0] < last
    assert scans[-1] == last


def test_an_event_that_is_committed_late_is_found(relay, waiting, later):
    say("t", "late", "late")
    late = OutboxEvent.objects.get(key=b"late")
    OutboxEvent.objects.filter(pk=late.pk).delete()
    say("t", "on time", "k")
    for _ in range(2):
        drain(relay)
        later(0.9)
    late.save(force_insert=True)
    drain(relay)
    assert [event.payload for event in waiting] == ["on time", "late"]
