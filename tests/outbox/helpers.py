"""What the outbox tests share."""

from contextlib import closing

from django.db import connections, transaction

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import OutboxEvent
from jobqueue.outbox import Relay, publish


def say(topic="t", payload=None, key=None, **options):
    """Publish in a transaction of its own; the event's id."""
    with transaction.atomic():
        return publish(topic, payload, key, **options)


def drain(relay=None, **options):
    """Relay until a whole round finds nothing due; what became of the events."""
    relay = relay or Relay("default", **options)
    for _ in range(1000):
        if not relay.run_once() and relay.idle:
            return relay.counts
    raise AssertionError("the relay finds no end")


def event(event_id):
    """The row, read now."""
    return OutboxEvent.objects.get(pk=event_id)


def make_due(**conditions):
    """Let waits and leases of pending events end now."""
    return OutboxEvent.objects.filter(lane__isnull=False, due_at__isnull=False, **conditions).update(
        due_at=UtcNowPlus(-1)
    )


def pending():
    """The ids of events that are still to be delivered."""
    return list(OutboxEvent.objects.filter(lane__isnull=False).order_by("id").values_list("pk", flat=True))


def other_connection():
    """A second session of the same database."""
    return closing(connections.create_connection("default"))
