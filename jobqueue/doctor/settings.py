"""What this host has without the database: the project's code and settings, the driver, and the servers they name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.core.checks import run_checks
from django.db import connections

from jobqueue.conf import load
from jobqueue.doctor.finding import Finding, Level, Need, check, report, report_system_checks
from jobqueue.failures import summary
from jobqueue.outbox.routes import Routes
from jobqueue.tasks import registry
from jobqueue.wakeup.redis_client import connect

#: a shorter lease lapses when a host is busy, or the database restarts
LEASE_SECONDS_MIN = 10.0
#: how long a server may take to answer; those of a check are asked at the same time
ANSWER_SECONDS = 2.0
#: how long a library may take in all: its first use imports it, and not all keep to the limit
GIVE_UP_SECONDS = 4.0
#: the driver options that end a wait for a lost connection; a thread without them waits for ever
_TIMEOUTS = {"mysql": ("read_timeout", "write_timeout"), "postgresql": ("tcp_user_timeout", "keepalives_idle")}
_NO_SERVER = (None, "auto", "off")
_WITHOUT = {"WAKEUP": "Without wake-ups, workers find new jobs only by polling.", "REDIS_URL": "redis_lock() fails."}


@check("task_modules", "all tasks.py can be imported", Need.NOTHING, task_module_failed=Level.ERROR)
def task_modules(using: str) -> Iterator[Finding]:
    """Imports first: most other checks are about what tasks.py has."""
    list(registry.discover())
    if files := sorted(registry.failed_files()):
        yield report(
            "task_module_failed",
            "A tasks.py cannot be imported, so workers with this code do not start. The log of this command has the "
            "traceback.",
            "Correct the error in the last file of the traceback that is yours.",
            {"files": list(files)},
        )


@check("settings", "the settings, the tasks and the routes are right", Need.NOTHING)
def system_checks(using: str) -> Iterator[Finding]:
    """The system checks of settings, tasks, routes, schedules and nested retries."""
    return report_system_checks(run_checks(tags=["jobqueue"]))


@check("driver", "the driver does not wait without a limit", Need.NOTHING, driver_timeouts=Level.INFO)
def driver_timeouts(using: str) -> Iterator[Finding]:
    """The options that the pages on the servers show."""
    entry: dict[str, Any] = settings.DATABASES.get(using, {})
    given = {**(entry.get("OPTIONS") or {})}
    wanted = _TIMEOUTS.get(str(connections[using].vendor), ())
    if missing := [name for name in wanted if not given.get(name)]:
        yield report(
            "driver_timeouts",
            f"OPTIONS of DATABASES[{using!r}] lacks {', '.join(missing)}: a connection whose packets are lost blocks "
            "its thread until the operating system gives up, which can take hours.",
            "Set them as docs/howto/mysql-settings.md and docs/howto/postgresql-settings.md show.",
            {"missing": list(missing)},
        )


@check("lease", "leases are long enough", Need.NOTHING, lease_short=Level.WARNING)
def lease_length(using: str) -> Iterator[Finding]:
    """E003 is about a heartbeat that does not fit into it."""
    found = load()
    if found.lease_seconds < LEASE_SECONDS_MIN:
        yield report(
            "lease_short",
            f"LEASE_SECONDS is {found.lease_seconds:g} s, with a heartbeat every {found.renew_seconds:g} s. If a "
            "host is busy for that long, or the database restarts, leases run out and their jobs run a second time.",
            f"Set it to {LEASE_SECONDS_MIN:g} s or more. A lease need not be as long as a job, because it is renewed.",
            {"lease_seconds": found.lease_seconds, "heartbeat_seconds": found.renew_seconds},
        )


@check("brokers", "the brokers of outbox routes answer", Need.NOTHING, beside=True, broker_unreachable=Level.ERROR)
def brokers(using: str) -> Iterator[Finding]:
    """E005 and W029 are about routes that lead nowhere."""
    routes = Routes(using, load().outbox_settings.routes)
    # Makes all but those that are wrong.
    routes.problems()
    asked = [_Asked(pattern, partial(made.ping, ANSWER_SECONDS)) for pattern, made in routes.made().items()]
    for pattern, problem in _problems(asked):
        yield report(
            "broker_unreachable",
            f"The broker of the route {pattern!r} of OUTBOX cannot be reached from here: {problem}. Its events wait.",
            "Start the broker, or correct the URL in JOBQUEUE['OUTBOX']['ROUTES']. See docs/howto/brokers.md.",
            {"route": pattern, "error": problem},
        )


@check("redis", "the Redis servers of the settings answer", Need.NOTHING, beside=True, redis_unreachable=Level.WARNING)
def redis_servers(using: str) -> Iterator[Finding]:
    """E004 and E006 are about settings that name no server."""
    found = load()
    places = {"WAKEUP": found.wakeup, "REDIS_URL": found.redis_url}
    asked = [_Asked(name, partial(_ping, name, place)) for name, place in places.items() if place not in _NO_SERVER]
    for name, problem in _problems(asked):
        yield report(
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
