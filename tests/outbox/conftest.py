"""Subscribers of one test."""

import os

import pytest

from jobqueue.outbox import subscriber, subscribers
from tests.servers import rabbitmq as server


@pytest.fixture
def listen(monkeypatch):
    """listen("topic", function): a subscriber for the time of the test; without a function, a list of what came."""
    monkeypatch.setattr(subscribers, "_subscribers", {})

    def add(topic="t", func=None, **options):
        heard = []

        def hear(event):
            heard.append(event)
            return func(event) if func else None

        hear.__qualname__ = f"hear-{topic}-{len(subscribers._subscribers)}"
        subscriber(topic, **options)(hear)
        return heard

    return add


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory):
    """A RabbitMQ of this run's own."""
    folder = tmp_path_factory.mktemp("rabbitmq")
    program = server.install(folder / "install.log")
    if program is None:
        assert not os.environ.get("CI"), (
            "there is no rabbitmq-server (Debian's package), and CI must not pass without it"
        )
        pytest.skip("there is no rabbitmq-server on this machine")
    found = server.RabbitMQ(folder, program)
    found.start()
    yield found
    found.remove()
