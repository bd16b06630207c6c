"""Destinations of events: queues, subscribers, Kafka, Redis Streams, and brokers that kombu supports.

base.Destination is the base class; outbox.routes knows which URL means which class. A relay uses them in its thread.
Libraries of brokers are imported when a route first needs them.
"""

from __future__ import annotations

from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.destinations.local import Functions, Queue

__all__ = ["Destination", "Functions", "Outcome", "Queue"]
