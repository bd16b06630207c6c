"""Events without a route and a subscriber: what is said of them, and how the events behind them go on."""

import json
import logging

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.exceptions import DestinationDown
from jobqueue.models import OutboxEvent
from jobqueue.outbox import Relay, dead_letters, discard, retry, routes, skip, statements
from tests.outbox.helpers import drain, event, make_due, pending, say
from tests.outbox.test_relay_command import no_signals, relay  # noqa: F401

pytestmark = pytest.mark.django_db


def said(caplog):
    return [record.getMessage() for record in caplog.records if "no route and no subscriber" in record.getMessage()]


def test_a_relay_names_the_event_the_events_behind_it_and_the_way_out(caplog):
    first, second, third = say("order.paid", 1, "k"), say("order.sent", 2, "k"), say("mail", 3, "k")
    drain()
    (text,) = said(caplog)
    assert text == (
        f"no route and no subscriber for 'order.paid': 1 event waits (#{first}), and 2 later events of its key behind "
        f"it (#{second}, #{third}). Add a @subscriber to <app>/tasks.py, route the topic in "
        f"JOBQUEUE['OUTBOX']['ROUTES'], or give it up with jobqueue.outbox.skip({first}) or in the admin."
    )
    assert event(first).last_error.startswith("no route and no subscriber for this topic.")


def test_an_event_with_a_key_holds_up_its_key_and_one_without_only_its_topic(listen):
    heard = listen("t")
    say("nobody", 1)
    say("nobody", 2, "k")
    say("t", "no key")
    say("t", "other key", "o")
    say("t", "behind", "k")
    drain()
    assert sorted(e.payload for e in heard) == ["no key", "other key"]
    keyless, keyed = Relay("default").unrouted()[0].ids, Relay("default").unrouted()[0].behind
    assert len(keyless) == 2
    assert len(keyed) == 1


def test_it_is_said_once_a_minute_and_topic(caplog, monkeypatch):
    for number in range(3):
        say("nobody", number, f"k{number}")
    relay = Relay("default", batch_size=1)
    drain(relay)
    make_due()
    drain(relay)
    # The first batch reports all that waits.
    assert len(said(caplog)) == 1
    assert "3 events wait" in said(caplog)[0]
    make_due()
    monkeypatch.setattr("jobqueue.outbox.delivery_log.UNROUTED_SECONDS", 0.0)
    drain(relay)
    assert len(said(caplog)) > 1


def test_skip_lets_the_key_go_on_and_keeps_the_event_as_a_dead_letter(listen):
    heard = listen("t")
    first, second = say("nobody", 1, "k"), say("t", 2, "k")
    assert not skip(first)
    drain()
    assert not skip(second)
    assert skip(first)
    assert not skip(first)
    assert pending() == [second]
    drain()
    assert [e.payload for e in heard] == [2]
    assert [e.pk for e in dead_letters()] == [first]
    heard_late = listen("nobody")
    assert retry(first)
    drain()
    assert [e.payload for e in heard_late] == [1]


def test_a_skipped_event_may_be_discarded():
    first = say("nobody", 1)
    drain()
    assert skip(first)
    assert discard(first, "not needed")
    assert not dead_letters()


def test_an_event_that_a_relay_holds_is_not_skipped():
    first = say("nobody", 1, "k")
    drain()
    OutboxEvent.objects.filter(pk=first).update(lock_token=b"t" * 16)
    assert not skip(first)


def test_a_subscriber_that_comes_later_gets_all_of_them(listen):
    say("nobody", 1, "k")
    say("t", 2, "k")
    drain()
    heard = listen("*")
    make_due()
    drain()
    assert [e.payload for e in heard] == [1, 2]
    assert not Relay("default").unrouted()


def test_the_command_says_it_at_its_start_and_at_its_end_although_nothing_is_due(caplog):
    first, second = say("order.paid", 1, "k"), say("order.sent", 2, "k")
    drain()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "jobqueue.outbox"):
        logging.getLogger("jobqueue").propagate, before = True, logging.getLogger("jobqueue").propagate
        status, out, _ = relay("--drain")
    logging.getLogger("jobqueue").propagate = before
    assert status == 0
    assert out.splitlines() == [
        "delivered 0, failed 0, dead lettered 0, put off 0, lost 0",
        f"no route and no subscriber for 'order.paid': 1 event waits (#{first}), and 1 later event of its key behind "
        f"it (#{second})",
    ]
    _, out, _ = relay("--drain", "--json")
    assert json.loads(out.splitlines()[-1])["unrouted"] == 1
    _, out, _ = relay("--drain", "--topics", "other")
    assert len(out.splitlines()) == 1


def test_a_relay_of_some_topics_says_nothing_of_others(caplog):
    say("nobody", 1)
    say("mine", 1)
    drain(topics=["mine"])
    (text,) = said(caplog)
    assert "'mine'" in text


def test_what_is_read_does_not_grow_with_the_backlog(monkeypatch):
    monkeypatch.setattr(routes, "COUNT_MAX", 3)
    for number in range(9):
        say("nobody", number)
        say("nobody", number, "k")
    with CaptureQueriesContext(connection) as seen:
        (found,) = routes.find_unrouted(lambda topic: True, using="default")
    assert len(seen) == 3
    # One more than is counted; behind the event with a key also that event itself.
    assert [sum(f"LIMIT {n}" in query["sql"] for query in seen) for n in (4, 5)] == [1, 1]
    assert str(found).startswith("'nobody': ")
    assert "3+ later events of their keys behind them" in str(found)


def test_dead_letters_and_delivered_events_are_not_counted():
    first, second = say("nobody", 1, "k"), say("nobody", 2)
    OutboxEvent.objects.filter(pk=first).update(failed_at=UtcNow(), due_at=None)
    OutboxEvent.objects.filter(pk=second).update(lane=None, processed_at=UtcNow())
    assert not routes.find_unrouted(lambda topic: True, using="default")


def test_a_topic_whose_events_somebody_took_meanwhile_is_left_out(monkeypatch):
    heads = statements.head_events

    def taken_meanwhile(**options):
        found = list(heads(**options))
        OutboxEvent.objects.all().delete()
        return found

    say("a.b")
    drain()
    monkeypatch.setattr(statements, "head_events", taken_meanwhile)
    assert routes.find_unrouted(lambda topic: True, using="default") == []


def test_a_topic_is_named_although_its_key_is_not_among_those_that_are_looked_at(caplog, monkeypatch, listen):
    by_lane = sorted((f"k{number}" for number in range(4)), key=lambda key: statements.key_lane(key.encode()))
    monkeypatch.setitem(routes.find_unrouted.__kwdefaults__, "limit", 2)
    listen("known")
    for key in by_lane[:3]:
        say("known", 1, key)
    OutboxEvent.objects.update(due_at=UtcNowPlus(3600))
    first, later = say("nobody", 1, by_lane[3]), say("nobody", 2, by_lane[3])
    drain()
    (text,) = said(caplog)
    assert f"'nobody': 1 event waits (#{first}), and 1 later event of its key behind it (#{later})" in text


def test_two_topics_that_take_turns_are_each_named_once_a_minute(caplog, monkeypatch):
    monkeypatch.setitem(routes.find_unrouted.__kwdefaults__, "limit", 1)
    relay = Relay("default", batch_size=1)
    for number in range(4):
        say(("one", "two")[number % 2], number, f"k{number}")
        drain(relay)
    assert len(said(caplog)) == 2


def test_a_relay_that_meets_a_later_event_of_a_topic_leaves_the_line_to_the_one_that_meets_the_first(caplog):
    first, second = say("nobody", 1, "k1"), say("nobody", 2, "k2")
    drain()
    assert len(said(caplog)) == 1
    OutboxEvent.objects.filter(pk=second).update(due_at=UtcNowPlus(-1))
    drain()
    assert len(said(caplog)) == 1
    OutboxEvent.objects.filter(pk=first).update(due_at=UtcNowPlus(-1))
    relay = Relay("default")
    drain(relay)
    assert len(said(caplog)) == 2
    make_due()
    drain(relay)
    assert len(said(caplog)) == 2


def test_a_first_event_that_waits_for_another_reason_keeps_no_relay_from_naming_the_topic(caplog):
    first, second = say("nobody", 1, "k1"), say("nobody", 2, "k2")
    OutboxEvent.objects.filter(pk=first).update(due_at=UtcNowPlus(3600), last_error="it failed")
    drain()
    (text,) = said(caplog)
    assert f"2 events wait (#{first}, #{second})" in text


def test_an_event_whose_new_route_leads_to_a_broker_that_is_down_tells_that_and_not_that_it_has_no_route(
    listen, left_alone
):
    def down(event):
        raise DestinationDown("connection refused by amqp://broker")

    first, second = say("nobody", 1, "k1"), say("nobody", 2, "k2")
    drain()
    assert "no route and no subscriber" in event(first).last_error
    tried = listen("nobody", down)
    make_due()
    assert drain(batch_size=1)["put_off"] == 2
    # The second one was put off without a try.
    assert len(tried) == 1
    for waiting in (first, second):
        text = event(waiting).last_error
        assert text.startswith("the destination cannot be reached")
        assert "connection refused by amqp://broker" in text
        assert event(waiting).attempts == 0
        assert not skip(waiting)
    assert not routes.find_unrouted(using="default")
