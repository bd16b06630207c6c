"""Events that leave if and only if the transaction that published them commits. See docs/howto/outbox.md."""

from __future__ import annotations

from jobqueue.outbox.destinations import Destination
from jobqueue.outbox.event import Event
from jobqueue.outbox.operator import dead_letters, discard, retry, skip
from jobqueue.outbox.publishing import publish
from jobqueue.outbox.relay import Relay
from jobqueue.outbox.subscribers import subscriber

__all__ = ["Destination", "Event", "Relay", "dead_letters", "discard", "publish", "retry", "skip", "subscriber"]
