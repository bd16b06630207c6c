"""Where events can go. Each destination is one small class; libraries of brokers are imported when first used."""

from __future__ import annotations

from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.destinations.queue import Queue
from jobqueue.outbox.destinations.subscribers import Functions

__all__ = ["Destination", "Functions", "Outcome", "Queue"]
