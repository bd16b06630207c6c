"""The outbox: brokers that do not answer, and events that no route takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from jobqueue.conf import load
from jobqueue.doctor.finding import Finding, Level
from jobqueue.failures import summary
from jobqueue.outbox.destinations import Destination
from jobqueue.outbox.routes import Routes
from jobqueue.outbox.unrouted import IDS_MAX
from jobqueue.payload import JSON

#: how long a broker may take to answer; all are asked at the same time
ANSWER_SECONDS = 1.0
#: how long a library may take in all: its first use imports it, and not all keep to the limit
GIVE_UP_SECONDS = 3.0
SHOWN = 10


def brokers(using: str) -> Iterator[Finding]:
    """broker_unreachable. E005 and W029 are about routes that lead nowhere."""
    routes = Routes(using, load().outbox_settings.routes)
    routes.problems()
    asked = [_Asked(pattern, made) for pattern, made in routes.made().items()]
    for one in asked:
        one.start()
    deadline = time.monotonic() + GIVE_UP_SECONDS
    for one in asked:
        one.join(max(0.0, deadline - time.monotonic()))
        if one.is_alive():
            one.problem = f"no answer within {GIVE_UP_SECONDS:g} s"
        if one.problem:
            yield Finding(
                Level.ERROR,
                "broker_unreachable",
                f"The broker of the route {one.pattern!r} of OUTBOX cannot be reached from here: {one.problem}. Its "
                "events wait.",
                "Start the broker, or correct the URL in JOBQUEUE['OUTBOX']['ROUTES']. See docs/howto/brokers.md.",
                {"route": one.pattern, "error": one.problem},
            )


class _Asked(threading.Thread):
    """Asks one broker. A daemon: the command ends, whatever a broker does."""

    def __init__(self, pattern: str, destination: Destination) -> None:
        super().__init__(name=f"jobqueue-doctor {pattern}", daemon=True)
        self.pattern, self.problem = pattern, ""
        self._destination = destination

    def run(self) -> None:
        try:
            self._destination.ping(ANSWER_SECONDS)
        except Exception as error:
            self.problem = summary(error)
        finally:
            self._destination.close()


def unrouted_events(using: str) -> Iterator[Finding]:
    """events_unrouted: an index seek for each key with events, up to 1,000 of them."""
    routes: Any = Routes(using, load().outbox_settings.routes)
    for one in routes.unrouted()[:SHOWN]:
        evidence: dict[str, JSON] = {"topic": one.topic, "events": sorted(one.ids)[:IDS_MAX]}
        evidence |= {"number": len(one.ids), "behind": len(one.behind)}
        yield Finding(
            Level.WARNING,
            "events_unrouted",
            f"No route and no subscriber of this host takes events of the topic {one}.",
            f"Add {one.topic!r} to JOBQUEUE['OUTBOX']['ROUTES'], write a subscriber, or discard the events in the "
            "admin. See docs/howto/outbox.md.",
            evidence,
        )
