"""publish(): an event is there if and only if its transaction committed."""

from datetime import UTC, datetime

import pytest
from django.db import transaction

from jobqueue.exceptions import InvalidType, InvalidValue, PayloadError, PayloadTooLarge, TransactionRequired
from jobqueue.models import HeldKey, OutboxEvent
from jobqueue.outbox import publish
from tests.factories import now, undone
from tests.outbox.helpers import drain, event, say
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock for the whole database")


@real
def test_outside_a_transaction_it_is_refused():
    with pytest.raises(TransactionRequired, match=r"atomic\(\)"):
        publish("t", 1)
    assert not OutboxEvent.objects.exists()


@plain
def test_the_event_has_what_was_given():
    begun = now()
    found = event(say("order.paid", {"id": 7, "ä": [1.5, None]}, "order-7"))
    assert (found.topic, found.payload, found.key) == ("order.paid", {"id": 7, "ä": [1.5, None]}, b"order-7")
    assert (found.attempts, found.processed_at, found.failed_at, found.lock_token) == (0, None, None, None)
    assert begun <= found.created_at <= now()
    assert found.created_at.tzinfo is UTC
    assert found.due_at <= datetime.now(UTC).replace(year=9000)


@plain
def test_a_rollback_publishes_nothing(listen):
    heard = listen("t")
    with undone():
        publish("t", 1)
        publish("t", 2, "k")
    with transaction.atomic():
        with undone():
            publish("t", 3, "k")
        publish("t", 4, "k")
    drain()
    assert [found.payload for found in heard] == [4]


@plain
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("", 1), InvalidValue),
        (("x" * 256, 1), InvalidValue),
        (("a,b", 1), InvalidValue),
        (("a*", 1), InvalidValue),
        (("a\n", 1), InvalidValue),
        ((b"t", 1), InvalidType),
        ((None, 1), InvalidType),
        (("t", {1, 2}), PayloadError),
        (("t", float("nan")), PayloadError),
        (("t", "x" * 2_000_000), PayloadTooLarge),
        (("t", 1, ""), InvalidValue),
        (("t", 1, "x" * 65), InvalidValue),
        (("t", 1, 7), InvalidType),
    ],
)
def test_bad_input_is_refused_before_anything_is_written_and_the_transaction_goes_on(arguments, error):
    with transaction.atomic():
        with pytest.raises(error, match="Nothing was written"):
            publish(*arguments)
        publish("t", "after")
    assert OutboxEvent.objects.get().payload == "after"
    assert not HeldKey.objects.exists()


@plain
@pytest.mark.parametrize(
    ("one", "other"), [("A", "a"), ("a", "a "), ("é", "e"), ("straße", "strasse"), ("a", b"a\xff")]
)
def test_keys_that_look_alike_are_two(one, other):
    lanes = {event(say("t", 1, key)).lane for key in (one, other)}
    assert len(lanes) == 2
    assert HeldKey.objects.count() == 2


@real
@row_locks
@pytest.mark.parametrize("known", [True, False])
def test_who_publishes_with_the_same_key_waits_for_the_commit_so_ids_follow_commits(known):
    if known:
        say("t", "before", "k")
    with holding(lambda: publish("t", "first", "k")):
        second = Actor(say, "t", "second", "k")
        assert second.is_blocked()
        say("t", "other key", "k2")
        say("t", "no key")
    second.result()
    rows = OutboxEvent.objects.filter(key=b"k").exclude(payload="before").order_by("id")
    assert [found.payload for found in rows] == ["first", "second"]


@real
@row_locks
def test_after_a_rollback_the_next_one_publishes():
    with holding(lambda: publish("t", "first", "k"), commit=False):
        second = Actor(say, "t", "second", "k")
        assert second.is_blocked()
    second.result()
    assert OutboxEvent.objects.get().payload == "second"
