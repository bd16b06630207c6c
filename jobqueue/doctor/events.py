"""Events of the outbox that no route and no subscriber of this host takes."""

from __future__ import annotations

from collections.abc import Iterator

from jobqueue.conf import load
from jobqueue.doctor.finding import Finding, Level
from jobqueue.outbox.routes import Routes
from jobqueue.outbox.unrouted import IDS_MAX
from jobqueue.payload import JSON

SHOWN = 10


def unrouted_events(using: str) -> Iterator[Finding]:
    """events_unrouted: an index seek for each key with events, up to 1,000 of them."""
    found = Routes(using, load().outbox_settings.routes).unrouted()
    for one in found[:SHOWN]:
        evidence: dict[str, JSON] = {"topic": one.topic, "events": list(sorted(one.ids)[:IDS_MAX])}
        evidence |= {"number": len(one.ids), "behind": len(one.behind)}
        yield Finding(
            Level.WARNING,
            "events_unrouted",
            f"No route and no subscriber of this host takes events of the topic {one}.",
            f"Add {one.topic!r} to JOBQUEUE['OUTBOX']['ROUTES'], write a subscriber, or give the events up with "
            "the action Skip of the admin. See docs/howto/outbox.md.",
            evidence,
        )
    if len(found) > SHOWN:
        yield Finding(
            Level.WARNING,
            "events_unrouted",
            f"Events of {len(found) - SHOWN} more topics have no route and no subscriber on this host.",
            "Look at these first; run jobs doctor again when they are mended.",
            {"more": len(found) - SHOWN},
        )
