"""Subscribers of one test."""

import pytest

from jobqueue.backoff import Backoff
from jobqueue.outbox import subscriber
from jobqueue.outbox.destinations import local


@pytest.fixture
def left_alone(monkeypatch):
    """A destination that is down is not tried a second time before the test has ended, however long that takes."""
    monkeypatch.setattr("jobqueue.outbox.routes.DOWN_PAUSES", Backoff(600, 1, 600))


@pytest.fixture
def listen(monkeypatch):
    """listen("topic", function): a subscriber for the time of the test; without a function, a list of what came."""
    monkeypatch.setattr(local, "_subscribers", {})

    def add(topic="t", func=None, **options):
        heard = []

        def hear(event):
            heard.append(event)
            return func(event) if func else None

        hear.__qualname__ = f"hear-{topic}-{len(local._subscribers)}"
        subscriber(topic, **options)(hear)
        return heard

    return add
