"""The RabbitMQ of the outbox tests."""

from tests.outbox.conftest import rabbitmq

__all__ = ["rabbitmq"]
