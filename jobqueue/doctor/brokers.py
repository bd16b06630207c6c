"""Servers beside the database that do not answer: brokers of outbox routes, and Redis for wake-ups and locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from jobqueue.conf import load
from jobqueue.doctor.finding import Finding, Level
from jobqueue.failures import summary
from jobqueue.outbox.routes import Routes
from jobqueue.wakeup.redis_client import connect

#: how long a server may take to answer; those of a check are asked at the same time
ANSWER_SECONDS = 2.0
#: how long a library may take in all: its first use imports it, and not all keep to the limit
GIVE_UP_SECONDS = 4.0
_NO_SERVER = (None, "auto", "off")
_WITHOUT = {"WAKEUP": "Without wake-ups, workers find new jobs only by polling.", "REDIS_URL": "redis_lock() fails."}


def brokers(using: str) -> Iterator[Finding]:
    """broker_unreachable. E005 and W029 are about routes that lead nowhere."""
    routes = Routes(using, load().outbox_settings.routes)
    # Makes all but those that are wrong.
    routes.problems()
    asked = [_Asked(pattern, partial(made.ping, ANSWER_SECONDS)) for pattern, made in routes.made().items()]
    for pattern, problem in _problems(asked):
        yield Finding(
            Level.ERROR,
            "broker_unreachable",
            f"The broker of the route {pattern!r} of OUTBOX cannot be reached from here: {problem}. Its events wait.",
            "Start the broker, or correct the URL in JOBQUEUE['OUTBOX']['ROUTES']. See docs/howto/brokers.md.",
            {"route": pattern, "error": problem},
        )


def redis_servers(using: str) -> Iterator[Finding]:
    """redis_unreachable. E004 and E006 are about settings that name no server."""
    found = load()
    places = {"WAKEUP": found.wakeup, "REDIS_URL": found.redis_url}
    asked = [_Asked(name, partial(_ping, name, place)) for name, place in places.items() if place not in _NO_SERVER]
    for name, problem in _problems(asked):
        yield Finding(
            Level.WARNING,
            "redis_unreachable",
            f"The Redis server of JOBQUEUE[{name!r}] cannot be reached from here: {problem}. {_WITHOUT[name]}",
            "Start the server, or correct the setting. See docs/howto/start-jobs-faster.md.",
            {"setting": name, "error": problem},
        )


def _ping(name: str, place: str | None) -> None:
    client = connect(str(place), ANSWER_SECONDS, f"JOBQUEUE[{name!r}]")
    try:
        client.ping()
    finally:
        client.close()


class _Asked(threading.Thread):
    """Asks one server. A daemon: the command ends, whatever a server does."""

    def __init__(self, name: str, ask: Callable[[], object]) -> None:
        super().__init__(name=f"jobqueue-doctor {name}", daemon=True)
        self.about, self.problem = name, ""
        self._ask = ask

    def run(self) -> None:
        try:
            self._ask()
        except Exception as error:
            self.problem = summary(error)


def _problems(asked: Sequence[_Asked]) -> Iterator[tuple[str, str]]:
    """Ask all at the same time; what those are about that did not answer, and why."""
    for one in asked:
        one.start()
    deadline = time.monotonic() + GIVE_UP_SECONDS
    for one in asked:
        one.join(max(0.0, deadline - time.monotonic()))
        if one.is_alive():
            yield one.about, f"no answer within {GIVE_UP_SECONDS:g} s"
        elif one.problem:
            yield one.about, one.problem
