"""The outbox: events are delivered if and only if the transaction that published them commits.

publish() runs in the caller's thread; a Relay in the relay_outbox process or in a thread of every worker process. Its
Delivery sends the claimed events to their destinations, and a DeliveryWatch in a second thread renews their leases.
"""

from __future__ import annotations

from jobqueue.outbox.destinations import Destination
from jobqueue.outbox.destinations.base import Event
from jobqueue.outbox.destinations.local import subscriber
from jobqueue.outbox.operator import dead_letters, discard, retry, skip
from jobqueue.outbox.publishing import publish
from jobqueue.outbox.relay import Relay

__all__ = ["Destination", "Event", "Relay", "dead_letters", "discard", "publish", "retry", "skip", "subscriber"]
