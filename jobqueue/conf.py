"""The JOBQUEUE setting as one frozen object; units are in the names."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from jobqueue.exceptions import InvalidValue
from jobqueue.validation import INT_MAX, SECONDS_MAX, check_queue


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """JOBQUEUE["QUEUES"][name]: what one queue does differently. None = as everywhere."""

    lease_seconds: float | None = None
    max_attempts: int | None = None
    ack_each: bool = False  # every job's end is committed by itself, before its thread starts another
    starve_seconds: float | None = None  # a job due for longer is taken before higher priorities
    on_key_failure: str | None = None  # as ON_KEY_FAILURE


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """JOBQUEUE["OUTBOX"]: where events go, and what becomes of those that cannot be delivered."""

    routes: Mapping[str, Any] = field(default_factory=dict)  # topic, or its beginning and *, -> destination
    batch_size: int = 100  # events of one claim
    lease_seconds: float = 60.0  # how long they stay with a relay that has fallen silent
    delivery_seconds: float | None = 300.0  # a delivery that takes longer is given up and charged; None = no limit
    max_attempts: int = 25  # failed deliveries before an event becomes a dead letter
    on_key_failure: str = "block"  # the key of a dead event waits for it ("block"), or does not ("skip")
    retention_seconds: float | None = 604_800.0  # how long delivered events are kept; None = for ever
    in_workers: bool = True  # every runworker process relays, too


@dataclass(frozen=True, slots=True)
class Settings:
    """JOBQUEUE with its defaults. Field names in upper case are the keys."""

    database: str = "default"  # alias of the database that holds the queue tables
    lease_seconds: float = 60.0  # how long a claim survives without a heartbeat; must exceed 3 x heartbeat_seconds
    heartbeat_seconds: float | None = None  # how often leases are renewed; None = lease_seconds / 4
    max_attempts: int = 25  # failed or lost runs before a job is FAILED, where neither job nor queue says otherwise
    max_payload_bytes: int = 1_048_576  # encoded payload above this is refused at enqueue
    max_result_bytes: int = 1_048_576  # encoded result above this ends the job FAILED (cause FORMAT)
    dedupe_seconds: float | None = 86_400.0  # how long a dedupe key stays held after the job finished; None = for ever
    backoff_base_seconds: float = 5.0  # wait after the first failure
    backoff_factor: float = 2.0  # each further failure waits this many times longer
    backoff_cap_seconds: float = 3600.0  # no wait is longer
    timeout_seconds: float | None = None  # a body that runs longer gets SoftTimeout; a task may set its own
    hard_timeout_seconds: float | None = None  # a body that runs longer has its process killed; a task may set its own
    on_key_failure: str = "block"  # the key of a FAILED job waits for the job ("block"), for resume() ("halt") or not
    log_lines: int = 100  # newest log lines kept of an attempt that fails; 0 = none
    worker_silent_seconds: float = 60.0  # a worker row without a heartbeat for this long is shown as dead
    wakeup: str = "auto"  # how idle workers learn of a commit: "auto" = NOTIFY on PostgreSQL, "off", or a redis:// URL
    lock_metrics_seconds: float | None = 86_400.0  # how long lock statistics are kept; None = nothing is counted
    redis_url: str | None = None  # server of redis_lock(); None = WAKEUP, where that is a Redis URL
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)  # per-queue overrides by queue name
    outbox: OutboxSettings | None = None  # the relay's; None = the defaults, and workers do not relay

    @property
    def renew_seconds(self) -> float:
        """How often leases are renewed, in seconds."""
        return self.heartbeat_seconds if self.heartbeat_seconds is not None else self.lease_seconds / 4

    @property
    def outbox_settings(self) -> OutboxSettings:
        """OUTBOX, or its defaults."""
        return self.outbox or OutboxSettings()

    def queue_lease_seconds(self, queue: str, worker_seconds: float) -> float:
        """The lease of jobs of `queue`: its own when that is longer than the worker's (heartbeats fit the worker's)."""
        own = self.queues.get(queue)
        return max(worker_seconds, own.lease_seconds or 0.0) if own else worker_seconds

    def queue_ack_each(self, queue: str) -> bool:
        """Whether jobs of `queue` are acked one by one."""
        own = self.queues.get(queue)
        return own is not None and own.ack_each

    def queue_on_key_failure(self, queue: str) -> str:
        """What becomes of an ordering key of `queue` when a job of it is FAILED: "block", "halt" or "skip"."""
        own = self.queues.get(queue)
        return own.on_key_failure if own and own.on_key_failure else self.on_key_failure

    def queue_max_attempts(self, queue: str) -> int:
        """max_attempts of jobs of `queue` that do not say otherwise."""
        own = self.queues.get(queue)
        return own.max_attempts if own and own.max_attempts else self.max_attempts


@cache
def load() -> Settings:
    """The settings of this process. Raises ImproperlyConfigured listing everything that is wrong."""
    found, problems = read(getattr(django_settings, "JOBQUEUE", {}))
    if problems:
        raise ImproperlyConfigured("JOBQUEUE: " + "; ".join(problems) + ". Correct the setting and start again.")
    return found


def read(raw: object) -> tuple[Settings, list[str]]:
    """The settings in `raw` and the list of what is wrong with it (system checks print the list)."""
    if not isinstance(raw, Mapping):
        return Settings(), [f"must be a dict, is {type(raw).__name__}"]
    known = {f.name.upper(): f.name for f in dataclasses.fields(Settings)}
    problems = [f"unknown key {key!r}" for key in raw if key not in known]
    values: dict[str, Any] = {known[key]: value for key, value in raw.items() if key in known}
    problems += [p for name, value in values.items() if (p := _problem(name, value))]
    if problems:
        return Settings(), problems
    if "queues" in values:
        values["queues"], problems = _read_queues(values["queues"])
    if values.get("outbox") is not None:
        values["outbox"], found = _read_outbox(values["outbox"])
        problems += found
    result = Settings(**values)
    if not result.lease_seconds > 3 * result.renew_seconds:
        problems.append(
            f"LEASE_SECONDS ({result.lease_seconds:g}) must exceed 3 x HEARTBEAT_SECONDS ({result.renew_seconds:g}), "
            "or one late heartbeat loses the lease"
        )
    return result, problems


def _read_queues(raw: Mapping[Any, Any]) -> tuple[dict[str, QueueSettings], list[str]]:
    known = {f.name.upper(): f.name for f in dataclasses.fields(QueueSettings)}
    queues, problems = {}, []
    for name, options in raw.items():
        where = f"QUEUES[{name!r}]"
        if not isinstance(name, str) or not isinstance(options, Mapping):
            problems.append(f"{where} must map a queue name to a dict")
            continue
        try:
            check_queue(name)
        except InvalidValue as error:
            problems.append(f"QUEUES: {str(error).partition('. Nothing')[0]}")
            continue
        problems += [f"{where}: unknown key {key!r}" for key in options if key not in known]
        values = {known[key]: value for key, value in options.items() if key in known}
        problems += [f"{where}: {p}" for n, value in values.items() if (p := _problem(n, value))]
        queues[name] = QueueSettings(**values)
    return queues, problems


def _read_outbox(raw: Mapping[Any, Any]) -> tuple[OutboxSettings, list[str]]:
    known = {f.name.upper(): f.name for f in dataclasses.fields(OutboxSettings)}
    problems = [f"OUTBOX: unknown key {key!r}" for key in raw if key not in known]
    values = {known[key]: value for key, value in raw.items() if key in known}
    problems += [f"OUTBOX: {p}" for name, value in values.items() if (p := _problem(name, value, EVENT_POLICIES))]
    problems += [] if problems else [p for item in values.get("routes", {}).items() if (p := _route_problem(*item))]
    return (OutboxSettings(), problems) if problems else (OutboxSettings(**values), [])


def _route_problem(pattern: object, route: object) -> str | None:
    """Without the value: a URL may hold a password."""
    where = f"OUTBOX: ROUTES[{pattern!r}]"
    if not isinstance(pattern, str) or not pattern or "," in pattern or "*" in pattern[:-1]:
        return f"{where}: a route is for a topic, or for the beginning of topics and *"
    url = route.get("URL") if isinstance(route, Mapping) else route
    if not isinstance(url, str):
        return f"{where} must be 'subscribers', 'queue:NAME', the URL of a broker, or a dict with a URL"
    known = url == "subscribers" or (url.startswith("queue:") and len(url) > len("queue:")) or "://" in url
    return None if known else f"{where} must be 'subscribers', 'queue:NAME', or the URL of a broker"


#: what happens to the key of a failed job, and of a dead event
KEY_POLICIES, EVENT_POLICIES = ("block", "halt", "skip"), ("block", "skip")
_NULLABLE = {
    "outbox",
    "retention_seconds",
    "delivery_seconds",
    "heartbeat_seconds",
    "dedupe_seconds",
    "timeout_seconds",
    "hard_timeout_seconds",
    "redis_url",
    "lock_metrics_seconds",
}


def _problem(name: str, value: object, policies: tuple[str, ...] = KEY_POLICIES) -> str | None:
    key = name.upper()
    if value is None and name in _NULLABLE:
        return None
    if name == "database":
        return None if isinstance(value, str) and value else f"{key} must be a database alias"
    if name == "redis_url":
        return None if _is_redis(value) else f"{key} must be a redis://, rediss:// or unix:// URL, or None"
    if name == "wakeup":
        # Without the value: a URL may hold a password.
        ok = value in ("auto", "off") or _is_redis(value)
        return None if ok else f"{key} must be 'auto', 'off' or a redis://, rediss:// or unix:// URL"
    if name in ("queues", "outbox", "routes"):
        return None if isinstance(value, Mapping) else f"{key} must be a dict"
    if name == "on_key_failure":
        return None if value in policies else f"{key} must be {' or '.join(map(repr, policies))}, is {value!r}"
    if name in ("ack_each", "in_workers"):
        return None if isinstance(value, bool) else f"{key} must be True or False, is {value!r}"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name == "log_lines":
        ok = number and isinstance(value, int) and 0 <= value <= 10_000
        return None if ok else f"{key} must be an int from 0 to 10000, is {value!r}"
    if name.startswith("max_") or name == "batch_size":
        ok = number and isinstance(value, int) and 1 <= value <= INT_MAX
        return None if ok else f"{key} must be an int of at least 1, is {value!r}"
    if name == "backoff_factor":
        return None if number and 1 <= value <= 1000 else f"{key} must be 1 to 1000, is {value!r}"  # type: ignore[operator]
    low_ok = number and (value >= 0 if name in ("dedupe_seconds", "backoff_base_seconds") else value > 0)  # type: ignore[operator]
    most = 100 * SECONDS_MAX if name in ("dedupe_seconds", "retention_seconds", "lock_metrics_seconds") else SECONDS_MAX
    ok = low_ok and value <= most  # type: ignore[operator]
    return None if ok else f"{key} must be a positive number of seconds, is {value!r}"


def _is_redis(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        located = parts.port != 0 and bool(parts.path if parts.scheme == "unix" else parts.hostname)
    except ValueError:
        return False
    return parts.scheme in ("redis", "rediss", "unix") and located


def _forget(*, setting: str, **_: object) -> None:
    if setting == "JOBQUEUE":
        load.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.conf")


def is_test_run() -> bool:
    """Whether this process runs tests: by Django's runner, by pytest or by any runner of unittest.

    Not every runner calls setup_test_environment(), which replaces the mailbox.
    """
    runners = sys.modules.get("unittest.signals")
    # Every TextTestRunner registers its result there, so that Ctrl-C can stop it.
    return hasattr(mail, "outbox") or "pytest" in sys.modules or bool(getattr(runners, "_results", None))


def is_development() -> bool:
    """Whether this process runs with DEBUG, or runs tests."""
    return bool(django_settings.DEBUG) or is_test_run()
