"""Observers learn of each delivery and of its attempt, so that repeated ones can be counted."""

import logging

import pytest

from jobqueue.models import Job
from jobqueue.outbox import Relay, delivery_log
from jobqueue.tasks import nesting
from tests.app import tasks
from tests.marks import committed
from tests.outbox.helpers import drain, make_due, say


@committed
def test_each_delivery_is_reported_with_its_attempt(listen, monkeypatch):
    seen = []
    monkeypatch.setattr(delivery_log, "_observers", [lambda *delivery: seen.append(delivery)])
    listen("t", lambda event: 1 / 0)
    say("t")
    relay = Relay("default")
    for _ in range(2):
        make_due()
        while not relay.run_once() and not relay.idle:
            pass
    assert seen == [("t", 1), ("t", 2)]


@committed
def test_the_lines_of_deliveries_that_fail_have_no_secrets_whoever_formats_them(listen, monkeypatch, caplog):
    def refuse(event):
        raise OSError("no answer from https://ops:hunter2@broker.example/")

    monkeypatch.setattr(logging.getLogger("jobqueue"), "propagate", True)
    listen("t", refuse)
    say("t")
    deliver(25)
    assert "again in" in caplog.messages[0]
    assert "becomes a dead letter" in caplog.messages[-1]
    assert all("https://ops:********@broker.example/" in line for line in caplog.messages)


def nested(caplog):
    return [record.getMessage() for record in caplog.records if "retries are nested" in record.getMessage()]


@pytest.fixture
def unreported(monkeypatch, caplog):
    """No topic has been reported yet."""
    monkeypatch.setattr(nesting, "_topics_reported", set())
    monkeypatch.setattr(logging.getLogger("jobqueue"), "propagate", True)
    return caplog


def deliver(times):
    for _ in range(times):
        make_due()
        drain()


@committed
def test_a_subscriber_that_enqueues_and_then_fails_is_reported_once_for_its_topic(listen, unreported):
    def pay(event):
        tasks.greet.enqueue("ann", event.payload)
        raise ValueError("no receipt")

    listen("order.paid", pay)
    say("order.paid", 1)
    deliver(1)
    assert not nested(unreported)
    deliver(2)
    assert Job.objects.count() == 3
    (text,) = nested(unreported)
    assert "delivery 2 of an event 'order.paid' enqueues a job of tests.app.tasks.greet without a dedupe_key" in text


@committed
@pytest.mark.parametrize("harmless", ["key", "atomic"])
def test_a_dedupe_key_or_an_atomic_subscriber_adds_one_job_and_is_not_reported(listen, unreported, harmless):
    def pay(event):
        own = {"dedupe_key": f"event-{event.id}"} if harmless == "key" else {}
        tasks.greet.using(**own).enqueue("ann", event.payload)
        if event.attempt < 3:
            raise ValueError("no receipt")

    listen("order.paid", pay, atomic=harmless == "atomic")
    say("order.paid", 1)
    deliver(3)
    assert Job.objects.count() == 1
    assert not nested(unreported)
    # Outside of a delivery nothing is known of one.
    assert nesting._delivery.get() is None
