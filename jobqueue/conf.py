"""The JOBQUEUE setting as one frozen object; units are in the names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, TypeGuard, TypeVar

from django.conf import settings as django_settings
from django.core import mail
from django.core.signals import setting_changed

from jobqueue.exceptions import InvalidValue, WrongSettings
from jobqueue.failures import FailureCause
from jobqueue.failures.dependencies import DependencySettings, read_dependencies
from jobqueue.failures.project import read_setting
from jobqueue.validation import INT_MAX, SECONDS_MAX, check_queue, did_you_mean, is_redis_url

T = TypeVar("T")
#: before an alias of CACHES, where a Redis URL is allowed too
CACHE_PREFIX = "cache:"


class Rule(NamedTuple):
    """What the value of one key may be."""

    allows: Callable[[object], bool]
    meaning: str  # follows "must be" in the message
    secret: bool = False  # the message leaves the value out: a URL may hold a password
    optional: bool = False  # None is allowed too

    def problem(self, key: str, value: object) -> str | None:
        """The message for a wrong value."""
        if self.allows(value) or (self.optional and value is None):
            return None
        meaning = f"{self.meaning}, or None" if self.optional else self.meaning
        return f"{key} must be {meaning}" + ("" if self.secret else f", is {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _int(low: int, high: int) -> Rule:
    return Rule(lambda v: _is_number(v) and isinstance(v, int) and low <= v <= high, f"an int from {low} to {high}")


def _seconds(high: int, *, zero: bool = False) -> Rule:
    low = "from 0" if zero else "above 0 and up"
    return Rule(
        lambda v: _is_number(v) and (v > 0 or (zero and v == 0)) and v <= high, f"a number of seconds {low} to {high}"
    )


def _one_of(*choices: str) -> Rule:
    return Rule(lambda value: value in choices, " or ".join(map(repr, choices)))


def _is_redis(value: object) -> bool:
    """Whether `value` is a Redis URL, or "cache:" and an alias; `check` looks whether CACHES has it."""
    return is_redis_url(value) or (isinstance(value, str) and re.fullmatch(f"{CACHE_PREFIX}.+", value) is not None)


def _key(default: T, rule: Rule, *, optional: bool = False) -> T:
    return field(default=default, metadata={"rule": rule._replace(optional=optional)})


_REDIS = "a redis://, rediss:// or unix:// URL, or 'cache:ALIAS' with an alias of CACHES"
_MAPPING = Rule(lambda value: isinstance(value, Mapping), "a dict", secret=True)
_ALIAS = Rule(lambda value: isinstance(value, str) and value != "", "a database alias")
_REDIS_URL = Rule(_is_redis, _REDIS, secret=True)
_WAKEUP = Rule(lambda value: value in ("auto", "off") or _is_redis(value), f"'auto', 'off', {_REDIS}", secret=True)
_BOOL = Rule(lambda value: isinstance(value, bool), "True or False")
_COUNT, _LINES = _int(1, INT_MAX), _int(0, 10_000)
_FACTOR = Rule(lambda value: _is_number(value) and 1 <= value <= 1000, "a number from 1 to 1000")
_SECONDS, _SECONDS_OR_0 = _seconds(SECONDS_MAX), _seconds(SECONDS_MAX, zero=True)
_AGE, _AGE_OR_0 = _seconds(100 * SECONDS_MAX), _seconds(100 * SECONDS_MAX, zero=True)
_JOB_POLICY, _EVENT_POLICY = _one_of("block", "halt", "skip"), _one_of("block", "skip")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """JOBQUEUE["QUEUES"][name]: what differs in one queue. None = as in all queues."""

    lease_seconds: float | None = _key(None, _SECONDS)
    max_attempts: int | None = _key(None, _COUNT)
    ack_each: bool = _key(False, _BOOL)  # the end of each job is committed before its thread starts another job
    starve_seconds: float | None = _key(None, _SECONDS)  # a job that is due for longer precedes higher priorities
    on_key_failure: str | None = _key(None, _JOB_POLICY)  # as ON_KEY_FAILURE


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """JOBQUEUE["OUTBOX"]: where events are delivered, and what happens to those that cannot be delivered."""

    routes: Mapping[str, Any] = field(default_factory=dict, metadata={"rule": _MAPPING})  # topic or prefix* -> route
    batch_size: int = _key(100, _COUNT)  # events of one claim
    lease_seconds: float = _key(60.0, _SECONDS)  # events of a relay that stopped are free again after this time
    # A delivery that takes longer is given up and counts as a failed one; None = no limit.
    delivery_seconds: float | None = _key(300.0, _SECONDS, optional=True)
    max_attempts: int = _key(25, _COUNT)  # failed deliveries before an event becomes a dead letter
    # Later events of a dead letter's key wait for it ("block"), or do not ("skip").
    on_key_failure: str = _key("block", _EVENT_POLICY)
    retention_seconds: float | None = _key(604_800.0, _AGE, optional=True)  # age of deletion; None = events are kept
    in_workers: bool = _key(True, _BOOL)  # whether every runworker process relays too


@dataclass(frozen=True, slots=True)
class Settings:
    """JOBQUEUE with its defaults. Field names in upper case are the keys."""

    database: str = _key("default", _ALIAS)  # alias of the database that holds the queue tables
    lease_seconds: float = _key(60.0, _SECONDS)  # a claim lasts this long without a heartbeat
    heartbeat_seconds: float | None = _key(None, _SECONDS, optional=True)  # None = lease_seconds / 4
    max_attempts: int = _key(25, _COUNT)  # failed or lost runs before a job is FAILED, unless job or queue differ
    quarantine_crashes: int | None = _key(None, _COUNT, optional=True)  # lost runs of a job; None = its max_attempts
    max_payload_bytes: int = _key(1_048_576, _COUNT)  # enqueue refuses a longer encoded payload
    max_result_bytes: int = _key(1_048_576, _COUNT)  # a longer encoded result ends the job FAILED (cause FORMAT)
    # How long a finished job keeps its dedupe key; None = until it is deleted.
    dedupe_seconds: float | None = _key(86_400.0, _AGE_OR_0, optional=True)
    backoff_base_seconds: float = _key(5.0, _SECONDS_OR_0)  # wait after the first failure
    backoff_factor: float = _key(2.0, _FACTOR)  # each further wait is this many times longer
    backoff_cap_seconds: float = _key(3600.0, _SECONDS)  # the longest wait
    # A job that runs longer gets SoftTimeout, or has its process killed; a task may set its own limits.
    timeout_seconds: float | None = _key(None, _SECONDS, optional=True)
    hard_timeout_seconds: float | None = _key(None, _SECONDS, optional=True)
    on_key_failure: str = _key("block", _JOB_POLICY)  # a key after a FAILED job: block, halt until resume(), or skip
    log_lines: int = _key(100, _LINES)  # newest log lines kept of a failed attempt; 0 = none
    worker_silent_seconds: float = _key(60.0, _SECONDS)  # a worker row without a heartbeat for so long is dead
    # How idle workers learn of a commit: "auto" = NOTIFY on PostgreSQL, "off" = polling, or Redis as in REDIS_URL.
    wakeup: str = _key("auto", _WAKEUP)
    lock_metrics_seconds: float | None = _key(86_400.0, _AGE, optional=True)  # age of deletion; None = no statistics
    redrive_retention_seconds: float | None = _key(7_776_000.0, _AGE, optional=True)  # of ended redrives; None = kept
    # For redis_lock(): a redis:// URL, or cache:ALIAS; None = WAKEUP, if it is one of these.
    redis_url: str | None = _key(None, _REDIS_URL, optional=True)
    # class path -> the cause of exceptions of this class and its subclasses; precedes the rules of the package
    causes: Mapping[str, FailureCause] = field(default_factory=dict, metadata={"rule": _MAPPING})
    dependencies: Mapping[str, DependencySettings] = field(default_factory=dict, metadata={"rule": _MAPPING})  # by name
    queues: Mapping[str, QueueSettings] = field(default_factory=dict, metadata={"rule": _MAPPING})  # by queue name
    # None = the defaults, and workers do not relay.
    outbox: OutboxSettings | None = field(default=None, metadata={"rule": _MAPPING._replace(optional=True)})

    @property
    def renew_seconds(self) -> float:
        """Seconds between two renewals of a lease."""
        return self.heartbeat_seconds if self.heartbeat_seconds is not None else self.lease_seconds / 4

    @property
    def outbox_settings(self) -> OutboxSettings:
        """OUTBOX, or its defaults."""
        return self.outbox or OutboxSettings()

    def queue_lease_seconds(self, queue: str, worker_seconds: float) -> float:
        """The lease length of jobs of `queue`: its own if that is longer. Heartbeats fit the worker's."""
        own = self.queues.get(queue)
        return max(worker_seconds, own.lease_seconds or 0.0) if own else worker_seconds

    def queue_ack_each(self, queue: str) -> bool:
        """Whether jobs of `queue` are acked one by one."""
        own = self.queues.get(queue)
        return own is not None and own.ack_each

    def queue_on_key_failure(self, queue: str) -> str:
        """What happens to an ordering key of `queue` when a job of it is FAILED: "block", "halt" or "skip"."""
        own = self.queues.get(queue)
        return own.on_key_failure if own and own.on_key_failure else self.on_key_failure

    def queue_max_attempts(self, queue: str) -> int:
        """max_attempts of jobs of `queue` that have none of their own."""
        own = self.queues.get(queue)
        return own.max_attempts if own and own.max_attempts else self.max_attempts


_READERS: dict[str, Callable[[Mapping[object, object]], tuple[Any, list[str]]]] = {
    "queues": lambda raw: _read_queues(raw),
    "outbox": lambda raw: _read_outbox(raw),
    "causes": read_setting,
    "dependencies": read_dependencies,
}


@cache
def load() -> Settings:
    """The settings of this process. Raises WrongSettings with a list of everything that is wrong."""
    found, problems = read(getattr(django_settings, "JOBQUEUE", {}))
    if problems:
        raise WrongSettings("JOBQUEUE: " + "; ".join(problems) + ". Correct the setting and start again.")
    return found


def read(raw: object) -> tuple[Settings, list[str]]:
    """The settings in `raw`, and a list of what is wrong with them; a wrong value is left at its default."""
    if not isinstance(raw, Mapping):
        return Settings(), [f"must be a dict, is {type(raw).__name__}"]
    values, problems = _values(Settings, raw)
    for name, reader in _READERS.items():
        if values.get(name) is not None:
            values[name], found = reader(values[name])
            problems += found
    result = Settings(**values)
    # Two values are compared only if both are right: the default of a wrong one says nothing.
    right = not {"LEASE_SECONDS", "HEARTBEAT_SECONDS"} & set(raw) - {name.upper() for name in values}
    if right and not result.lease_seconds > 3 * result.renew_seconds:
        problems.append(
            f"LEASE_SECONDS ({result.lease_seconds:g}) must exceed 3 x HEARTBEAT_SECONDS ({result.renew_seconds:g}), "
            "or one late heartbeat loses the lease"
        )
    return result, problems


def _values(kind: type, raw: Mapping[object, object]) -> tuple[dict[str, Any], list[str]]:
    """The right values in `raw` by the names of the fields of dataclass `kind`, and what is wrong with the others."""
    known = {one.name.upper(): one for one in fields(kind)}
    values: dict[str, Any] = {}
    problems = []
    for key, value in raw.items():
        if key not in known:
            problems.append(f"unknown key {key!r}" + (did_you_mean(key, known) or _elsewhere(kind, key)))
        elif problem := known[key].metadata["rule"].problem(key, value):
            problems.append(problem)
        else:
            values[known[key].name] = value
    return values, problems


def _elsewhere(kind: type, key: object) -> str:
    """Where a key belongs that another part of JOBQUEUE knows."""
    places = {"JOBQUEUE": Settings, "QUEUES[...]": QueueSettings, "OUTBOX": OutboxSettings}
    found = [
        name for name, other in places.items() if other is not kind and key in [f.name.upper() for f in fields(other)]
    ]
    return f" (it belongs in {' or '.join(found)})" if found else ""


def _read_queues(raw: Mapping[object, object]) -> tuple[dict[str, QueueSettings], list[str]]:
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
        values, found = _values(QueueSettings, options)
        problems += [f"{where}: {problem}" for problem in found]
        queues[name] = QueueSettings(**values)
    return queues, problems


def _read_outbox(raw: Mapping[object, object]) -> tuple[OutboxSettings, list[str]]:
    values, found = _values(OutboxSettings, raw)
    problems = [f"OUTBOX: {problem}" for problem in found]
    wrong = {item[0]: p for item in values.get("routes", {}).items() if (p := _route_problem(*item))}
    if wrong:
        values["routes"] = {name: route for name, route in values["routes"].items() if name not in wrong}
    return OutboxSettings(**values), [*problems, *wrong.values()]


def _route_problem(pattern: object, route: object) -> str | None:
    """What is wrong with a route, without its value: a URL may hold a password."""
    where = f"OUTBOX: ROUTES[{pattern!r}]"
    if not isinstance(pattern, str) or not pattern or "," in pattern or "*" in pattern[:-1]:
        return f"{where}: a pattern must be a topic, or the beginning of topics followed by *"
    url = route.get("URL") if isinstance(route, Mapping) else route
    if not isinstance(url, str):
        return f"{where} must be 'subscribers', 'queue:NAME', the URL of a broker, or a dict with a URL"
    known = url == "subscribers" or (url.startswith("queue:") and len(url) > len("queue:")) or "://" in url
    return None if known else f"{where} must be 'subscribers', 'queue:NAME', or the URL of a broker"


def _forget(*, setting: str, **_: object) -> None:
    if setting == "JOBQUEUE":
        load.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.conf")


def is_test_run() -> bool:
    """Whether this process runs tests: with Django's runner, pytest or any unittest runner.

    Some runners do not call setup_test_environment(), which adds mail.outbox.
    """
    runners = sys.modules.get("unittest.signals")
    # Every TextTestRunner registers its result in this module, so that Ctrl-C can stop it.
    return hasattr(mail, "outbox") or "pytest" in sys.modules or bool(getattr(runners, "_results", None))


def is_development() -> bool:
    """Whether this process runs with DEBUG, or runs tests."""
    return bool(django_settings.DEBUG) or is_test_run()
