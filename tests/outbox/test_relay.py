"""Relays: everything arrives, in order per key, at least once; failures, poison and lost leases."""

import asyncio
import threading
from contextlib import suppress

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test import override_settings

from jobqueue.base.payload import MAX_DEPTH
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import DestinationDown, InsideTransaction
from jobqueue.models import Job, OutboxEvent
from jobqueue.outbox import Relay, dead_letters, delivery, discard, publish, retry, skip
from jobqueue.outbox.claiming import EventClaimer
from jobqueue.transitions import claim
from tests.app.models import Account, Ticket
from tests.factories import now, seconds_from_now
from tests.marks import finding
from tests.outbox.helpers import drain, event, make_due, pending, say
from tests.patience import patient
from tests.races.actors import holding
from tests.settings import VENDOR

plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock for the whole database")


def outbox(**options):
    return override_settings(JOBQUEUE={"BACKOFF_BASE_SECONDS": 5, "OUTBOX": options})


def broken(event):
    raise ValueError("no")


@plain
def test_events_arrive_with_their_content_and_are_marked(listen):
    heard = listen("order.paid")
    begun = now()
    first, second = say("order.paid", {"n": 1}, "k"), say("order.paid", [2])
    assert drain() == {"delivered": 2, "failed": 0, "dead_lettered": 0, "put_off": 0, "lost": 0}
    assert sorted((e.id, e.key, e.payload, e.attempt) for e in heard) == [
        (first, "k", {"n": 1}, 1),
        (second, None, [2], 1),
    ]
    assert heard[0].headers["message-id"] == heard[0].headers["sequence"] == str(heard[0].id)
    assert heard[0].headers["topic"] == "order.paid"
    for event_id in (first, second):
        row = event(event_id)
        assert begun <= row.processed_at <= now()
        assert (row.lane, row.due_at, row.lock_token) == (None, None, None)
    assert drain()["delivered"] == 0


@plain
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_many_keys_and_topics_arrive_in_order_per_key_whatever_the_batch(listen, batch_size):
    heard = listen("*")
    with transaction.atomic():
        for n in range(10):
            for key in ("a", "b", "c", None):
                publish(f"t{n % 3}", n, key)
    assert drain(batch_size=batch_size)["delivered"] == 40
    for key in ("a", "b", "c"):
        assert [e.payload for e in heard if e.key == key] == list(range(10))
    assert sorted(e.payload for e in heard if e.key is None) == list(range(10))


@plain
def test_a_hot_key_does_not_keep_others_waiting(listen):
    heard = listen("t")
    with transaction.atomic():
        for n in range(300):
            publish("t", n, "hot")
        for n in range(20):
            publish("t", n, f"cold-{n}")
    relay = Relay("default", batch_size=40)
    for _ in range(4):
        relay.run_once()
    assert len([e for e in heard if e.key != "hot"]) == 20


@plain
@override_settings(JOBQUEUE={"BACKOFF_BASE_SECONDS": 500})
def test_a_failed_event_holds_back_its_key_only_and_is_repeated_after_the_back_off(listen):
    trouble = {"b1"}
    heard = listen("t", lambda e: e.payload in trouble and broken(e))
    for key in ("a", "b"):
        for n in range(3):
            say("t", f"{key}{n}", key)
    say("t", "c0")
    assert drain()["failed"] == 1
    assert [e.payload for e in heard if e.key == "a"] == ["a0", "a1", "a2"]
    assert [e.payload for e in heard if e.key == "b"] == ["b0", "b1"]
    failed = OutboxEvent.objects.get(payload="b1")
    assert failed.attempts == 1
    assert "ValueError: no" in failed.last_error
    assert 300 < seconds_from_now(failed.due_at) <= 600
    trouble.clear()
    assert drain()["delivered"] == 0
    make_due()
    drain()
    assert [e.payload for e in heard if e.key == "b"] == ["b0", "b1", "b1", "b2"]
    assert [e.attempt for e in heard if e.payload == "b1"] == [1, 2]


@plain
@pytest.mark.parametrize("policy", ["block", "skip"])
def test_an_event_is_a_dead_letter_after_its_attempts_and_its_key_waits_or_goes_on(listen, policy):
    heard = listen("t", lambda e: e.payload == "bad" and broken(e))
    with outbox(MAX_ATTEMPTS=3, ON_KEY_FAILURE=policy):
        bad, good = say("t", "bad", "k"), say("t", "good", "k")
        loose = say("t", "bad")
        for _ in range(5):
            drain()
            make_due()
        assert [e.attempt for e in heard if e.id == bad] == [1, 2, 3]
        assert [e.attempt for e in heard if e.id == loose] == [1, 2, 3]
        assert {row.pk for row in dead_letters()} == {bad, loose}
        assert [e.id for e in heard if e.payload == "good"] == ([good] if policy == "skip" else [])
        assert event(bad).attempts == 3
        assert pending() == ([bad, good] if policy == "block" else [])


@plain
def test_a_dead_letter_can_be_retried_or_skipped(listen):
    trouble = [True]
    heard = listen("t", lambda e: trouble and broken(e))
    with outbox(MAX_ATTEMPTS=1):
        first, second = say("t", 1, "k"), say("t", 2, "k")
        drain()
        assert (retry(second), skip(second)) == (False, False)
        assert retry(first)
        drain()
        assert [e.id for e in heard] == [first, first]
        assert skip(first)
        assert not skip(first)
        trouble.clear()
        drain()
        assert [e.id for e in heard] == [first, first, second]
        assert [row.pk for row in dead_letters()] == [first]
        assert retry(first)
        drain()
        assert heard[-1].id == first
        assert not dead_letters()


@plain
def test_an_event_that_is_discarded_is_never_delivered_and_its_key_goes_on(listen):
    trouble = [True]
    heard = listen("t", lambda e: trouble and broken(e))
    with outbox(MAX_ATTEMPTS=1):
        first, second = say("t", 1, "k"), say("t", 2, "k")
        drain()
        trouble.clear()
        assert (discard(second), discard(first, "sent by\x00hand")) == (False, True)
        assert (discard(first), retry(first), skip(first)) == (False, False, False)
        drain()
    assert [e.id for e in heard] == [first, second]
    assert not dead_letters()
    assert event(first).last_error.endswith("\nDiscarded: sent by\\x00hand")


@plain
def test_topics_can_be_chosen_and_of_a_key_only_those_topics_are_in_order(listen):
    heard = listen("*")
    for n in range(3):
        say("a", n, "k")
        say("b", n, "k")
    say("b", 9)
    drain(topics=["a"])
    assert [(e.topic, e.payload) for e in heard] == [("a", 0), ("a", 1), ("a", 2)]
    drain()
    assert sorted((e.topic, e.payload) for e in heard[3:]) == [("b", 0), ("b", 1), ("b", 2), ("b", 9)]


@plain
def test_an_event_nobody_listens_to_waits_without_a_charge(listen, caplog):
    first, second = say("nobody", 1, "k"), say("t", 2, "k")
    heard = listen("t")
    assert drain()["put_off"] == 1
    assert "no route and no subscriber for 'nobody'" in caplog.text
    assert event(first).attempts == 0
    assert 10 < seconds_from_now(event(first).due_at) < 80
    assert (heard, pending()) == ([], [first, second])


@plain
def test_a_destination_that_is_down_costs_no_attempts(listen, left_alone):
    def down(event):
        raise DestinationDown("nobody answers")

    listen("t", down)
    ids = [say("t", n) for n in range(5)]
    relay = Relay("default")
    drain(relay)
    assert relay.counts["put_off"] == 5
    assert {event(event_id).attempts for event_id in ids} == {0}
    assert len(pending()) == 5


@plain
def test_a_stopping_relay_gives_back_what_it_has_not_sent(listen):
    heard = listen("t")
    ids = [say("t", n, "k") for n in range(5)]
    relay = Relay("default", stopping=lambda: len(heard) >= 2)
    relay.run_once()
    assert [e.payload for e in heard] == [0, 1]
    assert pending() == ids[2:]
    assert {row.lock_token for row in OutboxEvent.objects.all()} == {None}
    drain()
    assert [e.payload for e in heard] == list(range(5))


@plain
def test_a_relay_whose_lease_ended_sends_no_more_and_marks_nothing(listen, monkeypatch):
    heard = listen("t")
    for n in range(3):
        say("t", n, "k")
    paused = Relay("default")
    real_send = delivery.Delivery._send

    def pause_before_the_second(self, destination, events):
        if self._watch is paused.watch and events[0].payload == 1:
            # As SIGSTOP past the lease: the clock has gone on, and another relay has taken over.
            self._batch.until -= 100
            assert make_due() == 2
            drain()
        return real_send(self, destination, events)

    monkeypatch.setattr(delivery.Delivery, "_send", pause_before_the_second)
    paused.run_once()
    assert [e.payload for e in heard] == [0, 1, 2]
    assert paused.counts["lost"] == 2
    assert pending() == []


@plain
def test_an_answer_that_comes_after_the_lease_changes_nothing(listen):
    def slow(event):
        if event.attempt == 1 and event.payload == 0:
            make_due()
            assert drain(Relay("default"))["delivered"] == 3

    heard = listen("t", slow)
    for n in range(3):
        say("t", n, "k")
    late = Relay("default")
    late.run_once()
    # At least once: the first came twice, the second time before the others; nothing after it came again.
    assert [e.payload for e in heard] == [0, 0, 1, 2]
    assert late.counts["lost"] == 2
    assert OutboxEvent.objects.filter(attempts=1, processed_at__isnull=False).count() == 3


@plain
def test_an_event_that_kills_its_relays_goes_alone_and_ends_as_a_dead_letter(listen):
    heard = listen("t")
    with outbox(MAX_ATTEMPTS=2):
        bad, good = say("t", "bad", "k"), say("t", "good", "j")
        for _ in range(3):
            # A relay that takes events and is never heard of again.
            batch = None
            claimer = EventClaimer("default", lease_seconds=60)
            for _ in range(5):
                batch = batch or claimer.claim(100)
            if len(batch) == 1 and good in [e.id for found in batch.lanes.values() for e in found]:
                OutboxEvent.objects.filter(pk=good).update(lane=None, due_at=None, lock_token=None)
            make_due()
        drain()
        make_due()
        drain()
        assert [row.pk for row in dead_letters()] == [bad]
        assert "stopped renewing its lease" in dead_letters()[0].last_error
        assert bad not in [e.id for e in heard]


@plain
def test_a_relay_in_an_open_transaction_is_refused():
    with transaction.atomic(), pytest.raises(InsideTransaction, match="nothing was written"):
        Relay("default").run_once()


@plain
def test_a_failure_that_is_noticed_after_the_lease_changes_nothing(listen):
    def slow(event):
        if event.attempt == 1:
            make_due()
            assert drain(Relay("default"))["delivered"] == 2
            broken(event)

    heard = listen("t", slow)
    ids = [say("t", n, "k") for n in range(2)]
    late = Relay("default")
    late.run_once()
    assert [e.payload for e in heard] == [0, 0, 1]
    assert (late.counts["failed"], late.counts["dead_lettered"]) == (0, 0)
    assert {event(event_id).last_error for event_id in ids} == {None}


@plain
def test_an_atomic_subscribers_writes_and_the_mark_are_one(listen):
    def sell(event):
        Ticket.objects.create(number=event.payload)
        if event.payload == "2":
            broken(event)

    listen("t", sell, atomic=True)
    ids = [say("t", str(n)) for n in range(1, 4)]
    drain()
    assert sorted(Ticket.objects.values_list("number", flat=True)) == ["1", "3"]
    assert pending() == [ids[1]]


@plain
def test_an_atomic_subscriber_keeps_its_promise_beside_one_that_is_not(listen):
    blocks = connection.atomic_blocks
    depths, outside = [], len(blocks)
    heard = listen("t.*", lambda event: depths.append(len(blocks)))

    def sell(event):
        Ticket.objects.create(number="1")
        if event.attempt == 1:
            broken(event)

    listen("t.sold", sell, atomic=True)
    event_id = say("t.sold")
    drain()
    assert not Ticket.objects.exists()
    make_due()
    assert drain()["delivered"] == 1
    assert (Ticket.objects.count(), event(event_id).attempts, [e.attempt for e in heard]) == (1, 1, [1, 2])
    assert depths == [outside, outside], "in a transaction that it has not asked for"


@plain
def test_an_atomic_effect_happens_once_however_late_the_event_comes_again(listen):
    trouble = [True]
    listen("t", lambda event: Ticket.objects.create(number=str(event.id)), atomic=True)
    listen("t", lambda event: trouble and broken(event), atomic=True)
    with outbox(MAX_ATTEMPTS=1):
        event_id = say("t", key="k")
        drain()
        OutboxEvent.objects.update(created_at=UtcNowPlus(-90 * 86400), failed_at=UtcNowPlus(-60 * 86400))
        trouble.clear()
        assert retry(event_id)
        drain()
        assert not retry(event_id)
    assert (pending(), Ticket.objects.count()) == ([], 1)


@plain
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_whatever_a_subscriber_raises_is_a_failed_delivery(listen, atomic, raised):
    def leave(event):
        raise raised

    listen("t", leave, atomic=atomic)
    other = listen("u")
    event_id, _ = say("t", key="k"), say("u")
    assert drain()["failed"] == 1
    assert raised.__name__ in event(event_id).last_error
    assert len(other) == 1


@plain
def test_an_error_that_an_atomic_subscriber_swallows_is_a_failed_delivery(listen):
    Ticket.objects.create(number="taken")

    def sell(event):
        Account.objects.create(owner="effect")
        with suppress(IntegrityError):
            Ticket.objects.create(number="taken")

    listen("t", sell, atomic=True)
    event_id = say("t", key="k")
    assert drain() == {"delivered": 0, "failed": 1, "dead_lettered": 0, "put_off": 0, "lost": 0}
    assert not Account.objects.exists()
    assert "IntegrityError" in event(event_id).last_error
    assert "nothing is stored" in event(event_id).last_error


@plain
def test_an_error_that_an_atomic_subscriber_undoes_by_itself_is_none(listen):
    Ticket.objects.create(number="taken")

    def sell(event):
        Account.objects.create(owner="effect")
        with suppress(IntegrityError), transaction.atomic():
            Ticket.objects.create(number="taken")

    listen("t", sell, atomic=True)
    say("t", key="k")
    assert drain()["delivered"] == 1
    assert Account.objects.count() == 1


@plain
def test_coroutine_functions_listen_too(listen):
    from jobqueue.outbox import subscriber

    listen("unused")
    heard = []

    @subscriber("t")
    async def hear(event):
        heard.append(event.payload)

    say("t", 1)
    drain()
    assert heard == [1]


@plain
def test_a_route_to_a_queue_adds_one_job_per_event_in_order():
    with outbox(ROUTES={"order.*": "queue:orders"}):
        ids = [say("order.paid", {"n": n}, "k") for n in range(3)]
        assert drain()["delivered"] == 3
    jobs = list(Job.objects.order_by("id"))
    assert [job.payload["id"] for job in jobs] == ids
    assert jobs[0].payload["payload"] == {"n": 0}
    assert (jobs[0].payload["topic"], jobs[0].payload["key"]) == ("order.paid", "k")
    assert {job.queue for job in jobs} == {"orders"}


@plain
def test_an_event_that_comes_again_adds_no_second_job():
    with outbox(ROUTES={"*": "queue:orders"}):
        event_id = say("t", 1)
        drain()
        OutboxEvent.objects.filter(pk=event_id).update(processed_at=None, lane=-5, due_at=event(event_id).created_at)
        drain()
    assert Job.objects.count() == 1


@plain
@finding("R9")
def test_after_the_table_was_truncated_new_events_with_old_ids_become_jobs():
    with outbox(ROUTES={"*": "queue:orders"}):
        event_id = say("t", "before")
        drain()
        # As TRUNCATE, which would end the transaction of this test.
        OutboxEvent.objects.all().delete()
        again = say("t", "after")
        OutboxEvent.objects.filter(pk=again).update(id=event_id, created_at=UtcNowPlus(1))
        assert drain()["delivered"] == 1
    assert [job.payload["payload"] for job in Job.objects.order_by("id")] == ["before", "after"]


@plain
def test_what_publish_takes_fits_into_a_queue_with_all_that_is_put_around_it():
    deep = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    with override_settings(JOBQUEUE={"MAX_PAYLOAD_BYTES": 1000, "OUTBOX": {"ROUTES": {"*": "queue:rest"}}}):
        say("\U0001f600" * 255, "x" * 990, "\x01" * 64)
        say("deep", deep)
        assert drain()["delivered"] == 2
        assert sorted(lease.payload["payload"] == deep for lease in claim("rest", 2, worker="w")) == [False, True]


@plain
def test_the_longest_route_wins_and_an_event_too_large_for_a_queue_does_not_take_others_along(listen):
    heard = listen("*")
    routes = {"*": "queue:rest", "order.*": "queue:orders", "order.paid": "subscribers"}
    say("else", "x" * 9000)
    with override_settings(JOBQUEUE={"MAX_PAYLOAD_BYTES": 1000, "OUTBOX": {"ROUTES": routes}}):
        say("order.paid", 1)
        say("order.sent", 2)
        say("else", 3)
        assert drain()["failed"] == 1
    assert [e.payload for e in heard] == [1]
    assert sorted(Job.objects.values_list("queue", flat=True)) == ["orders", "rest"]


@real
@row_locks
def test_two_relays_share_a_topic_and_skip_each_others_keys(listen):
    listen("t")
    for n in range(4):
        say("t", n, "a")
        say("t", n)
    first = EventClaimer("default", lease_seconds=60)
    batches = [batch for _ in range(4) if (batch := first.claim(2))]
    taken = {e.id for batch in batches for found in batch.lanes.values() for e in found}
    assert taken
    second = Relay("default")
    drain(second)
    assert second.counts["delivered"] == 8 - len(taken) - len({e for e in pending() if e not in taken})
    keyed = [row.pk for row in OutboxEvent.objects.filter(key=b"a").order_by("id")]
    if keyed[0] in taken:
        assert set(keyed) <= set(pending())


@real
@row_locks
def test_a_late_commit_with_a_lower_id_is_delivered(listen):
    heard = listen("t")
    with holding(lambda: publish("t", "late")):
        say("t", "early")
        drain()
        assert [e.payload for e in heard] == ["early"]
    drain()
    assert [e.payload for e in heard] == ["early", "late"]
    assert heard[1].id < heard[0].id


@real
@row_locks
def test_a_relay_does_not_wait_for_an_open_transaction_that_publishes_with_a_key(listen):
    heard = listen("t")
    say("t", 1, "k")
    with holding(lambda: publish("t", 2, "k")):
        drain()
        assert [e.payload for e in heard] == [1]
    drain()
    assert [e.payload for e in heard] == [1, 2]


@real
def test_what_a_slow_delivery_could_not_give_back_is_given_back_when_it_ends(listen, monkeypatch):
    from jobqueue.outbox import watch

    asked = threading.Event()

    def fails(self, *what):
        asked.set()
        raise OperationalError("no answer")

    monkeypatch.setattr(watch.DeliveryWatch, "_release", fails)
    heard = listen("t", lambda event: event.payload == 0 and asked.wait(patient()))
    ids = [say("t", n, f"k{n % 2}") for n in range(6)]
    with outbox(LEASE_SECONDS=600):
        relay = Relay("default")
        # A relay begins at a lane that it takes at random, and its first round may bring the other key only.
        while not any(event.key == "k0" for event in heard):
            relay.run_once()
    assert [event.payload for event in heard if event.key == "k0"] == [0]
    assert ids[0] not in pending()
    assert set(OutboxEvent.objects.filter(lane__isnull=False).values_list("lock_token", "attempts")) == {(None, 0)}
    drain()
    assert not pending()
