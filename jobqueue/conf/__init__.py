"""The JOBQUEUE setting as one frozen object; units are in the names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core import mail
from django.core.signals import setting_changed

from jobqueue.backoff import Backoff
from jobqueue.base.validation import did_you_mean
from jobqueue.conf.alarms import AlarmSettings, read_alarms
from jobqueue.conf.queues import DEFAULT, Kept, QueueSettings, read_queues, read_retention
from jobqueue.conf.rules import (
    AGE,
    AGE_OR_0,
    ALIAS,
    BOOL,
    COUNT,
    EVENT_POLICY,
    FACTOR,
    JOB_POLICY,
    LINES,
    MAPPING,
    PATHS,
    REDIS_URL,
    SECONDS,
    SECONDS_OR_0,
    TOKEN,
    WAKEUP,
    setting,
)
from jobqueue.exceptions import WrongSettings
from jobqueue.failures import FailureCause
from jobqueue.failures.dependencies import DependencySettings, read_dependencies
from jobqueue.failures.project import read_setting

#: key -> argument of @schedule
SCHEDULE_KEYS = {
    "CRON": "cron",
    "EVERY": "every",
    "TIMEZONE": "timezone",
    "MISSED": "missed",
    "MISSED_LIMIT": "missed_limit",
    "OVERLAP": "overlap",
    "JITTER_SECONDS": "jitter_seconds",
    "START_AT": "start_at",
    "END_AT": "end_at",
}
_ALL_OF_SCHEDULE = ("TASK", "ARGS", "KWARGS", *SCHEDULE_KEYS)


def read_schedules(raw: Mapping[object, object]) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """SCHEDULES by name, and a list of what is wrong with it: keys that do not exist, and a TASK that is missing."""
    found: dict[str, Mapping[str, Any]] = {}
    problems = []
    for name, entry in raw.items():
        where = f"SCHEDULES[{name!r}]"
        if not isinstance(name, str) or not isinstance(entry, Mapping):
            problems.append(f"{where} must map the name of a schedule to a dict")
        elif unknown := [key for key in entry if key not in _ALL_OF_SCHEDULE]:
            hint = did_you_mean(unknown[0], _ALL_OF_SCHEDULE) or f"; it has {', '.join(_ALL_OF_SCHEDULE)}"
            problems.append(f"{where} has the unknown key {unknown[0]!r}{hint}")
        elif not isinstance(entry.get("TASK"), str):
            problems.append(f"{where} must have a TASK: the dotted path of a task")
        else:
            found[name] = entry
    return found, problems


_MASK_KEYS = ("KEYS", "PATTERNS")


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """Names of keys, in lower case without signs, and patterns of text."""

    keys: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()


def read_mask(raw: Mapping[object, object]) -> tuple[MaskSettings, list[str]]:
    """MASK, and a list of what is wrong with it; what is wrong is left out."""
    problems = [
        f"MASK has the unknown key {key!r}{did_you_mean(key, _MASK_KEYS) or '; it has KEYS and PATTERNS'}"
        for key in raw
        if key not in _MASK_KEYS
    ]
    keys: set[str] = set()
    patterns: list[re.Pattern[str]] = []
    for name in _MASK_KEYS:
        entries = raw.get(name, [])
        if not isinstance(entries, (list, tuple)):
            problems.append(f"MASK[{name!r}] must be a list, is {type(entries).__name__}")
            continue
        for number, entry in enumerate(entries):
            where = f"MASK[{name!r}][{number}]"
            if not isinstance(entry, str):
                problems.append(f"{where} must be a str, is {entry!r}")
            elif name == "KEYS":
                keys.add(re.sub(r"[\W_]", "", entry).lower())
            elif isinstance(pattern := _compiled(entry), str):
                problems.append(f"{where} = {entry!r} {pattern}")
            else:
                patterns.append(pattern)
    return MaskSettings(frozenset(keys - {""}), tuple(patterns)), problems


def _compiled(entry: str) -> re.Pattern[str] | str:
    """The pattern, or what is wrong with it."""
    try:
        pattern = re.compile(entry)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    return "must not match the empty text: it would match everywhere" if pattern.search("") else pattern


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """JOBQUEUE["OUTBOX"]: where events are delivered, and what happens to those that cannot be delivered."""

    routes: Mapping[str, Any] = field(default_factory=dict, metadata={"rule": MAPPING})  # topic or prefix* -> route
    batch_size: int = setting(100, COUNT)  # events of one claim
    lease_seconds: float = setting(60.0, SECONDS)  # events of a relay that stopped are free again after this time
    # A delivery that takes longer is given up and counts as a failed one; None = no limit.
    delivery_seconds: float | None = setting(300.0, SECONDS, optional=True)
    max_attempts: int = setting(25, COUNT)  # failed deliveries before an event becomes a dead letter
    # Later events of a dead letter's key wait for it ("block"), or do not ("skip").
    on_key_failure: str = setting("block", EVENT_POLICY)
    retention_seconds: float | None = setting(604_800.0, AGE, optional=True)  # age of deletion; None = events are kept
    in_workers: bool = setting(True, BOOL)  # whether every runworker process relays too


_PLAIN_QUEUE = QueueSettings()


@dataclass(frozen=True, slots=True)
class Settings:
    """JOBQUEUE with its defaults. Field names in upper case are the keys."""

    database: str = setting("default", ALIAS)  # alias of the database that holds the queue tables
    lease_seconds: float = setting(60.0, SECONDS)  # a claim lasts this long without a heartbeat
    heartbeat_seconds: float | None = setting(None, SECONDS, optional=True)  # None = lease_seconds / 4
    max_attempts: int = setting(25, COUNT)  # failed or lost runs before a job is FAILED, unless job or queue differ
    quarantine_crashes: int | None = setting(None, COUNT, optional=True)  # lost runs of a job; None = its max_attempts
    max_payload_bytes: int = setting(1_048_576, COUNT)  # enqueue refuses a longer encoded payload
    max_result_bytes: int = setting(1_048_576, COUNT)  # a longer encoded result ends the job FAILED (cause FORMAT)
    # How long a finished job keeps its dedupe key; None = until it is deleted.
    dedupe_seconds: float | None = setting(86_400.0, AGE_OR_0, optional=True)
    backoff_base_seconds: float = setting(5.0, SECONDS_OR_0)  # wait after the first failure
    backoff_factor: float = setting(2.0, FACTOR)  # each further wait is this many times longer
    backoff_cap_seconds: float = setting(3600.0, SECONDS)  # the longest wait
    # A job that runs longer gets SoftTimeout, or has its process killed; a task may set its own limits.
    timeout_seconds: float | None = setting(None, SECONDS, optional=True)
    hard_timeout_seconds: float | None = setting(None, SECONDS, optional=True)
    on_key_failure: str = setting("block", JOB_POLICY)  # a key after a FAILED job: block, halt until resume(), or skip
    log_lines: int = setting(100, LINES)  # newest log lines kept of a failed attempt; 0 = none
    worker_silent_seconds: float = setting(60.0, SECONDS)  # a worker row without a heartbeat for so long is dead
    # How idle workers learn of a commit: "auto" = NOTIFY on PostgreSQL, "off" = polling, or Redis as in REDIS_URL.
    wakeup: str = setting("auto", WAKEUP)
    lock_metrics_seconds: float | None = setting(86_400.0, AGE, optional=True)  # age of deletion; None = no statistics
    redrive_retention_seconds: float | None = setting(7_776_000.0, AGE, optional=True)  # of ended redrives; None = kept
    audit_retention_seconds: float | None = setting(34_560_000.0, AGE, optional=True)  # of ended bulk actions
    # What a request for jobqueue.metrics.view shows in its header Authorization; None = only staff may read it.
    metrics_token: str | None = setting(None, TOKEN, optional=True)
    # For redis_lock(): a redis:// URL, or cache:ALIAS; None = WAKEUP, if it is one of these.
    redis_url: str | None = setting(None, REDIS_URL, optional=True)
    middleware: tuple[str, ...] = setting((), PATHS)  # classes around each enqueue and each run, the outermost first
    # class path -> the cause of exceptions of this class and its subclasses; precedes the rules of the package
    causes: Mapping[str, FailureCause] = field(default_factory=dict, metadata={"rule": MAPPING})
    dependencies: Mapping[str, DependencySettings] = field(default_factory=dict, metadata={"rule": MAPPING})  # by name
    queues: Mapping[str, QueueSettings] = field(default_factory=dict, metadata={"rule": MAPPING})  # by queue name
    # How long ended jobs are kept, by state; None = for ever. States that are left out keep their default.
    retention: Mapping[str, Kept] = field(default_factory=dict, metadata={"rule": MAPPING._replace(optional=True)})
    worker_retention_seconds: float | None = setting(604_800.0, AGE, optional=True)  # of stopped workers; None = kept
    archive_retention_seconds: float | None = setting(None, AGE, optional=True)  # of archived jobs; None = kept
    # Of the requests that take() has answered; None = kept, and a repeated request always gets the same rows.
    allocation_retention_seconds: float | None = setting(None, AGE, optional=True)
    # Of decided ticks, and of schedules that were retired; None = kept.
    schedule_retention_seconds: float | None = setting(2_592_000.0, AGE, optional=True)
    stat_retention_seconds: float | None = setting(34_560_000.0, AGE, optional=True)  # of statistics; None = kept
    group_retention_seconds: float | None = setting(2_592_000.0, AGE, optional=True)  # of ended groups; None = kept
    alarm_retention_seconds: float | None = setting(7_776_000.0, AGE, optional=True)  # of ended alarms; None = kept
    # Thresholds by queue, and who is told; empty = nobody looks.
    alarms: AlarmSettings = field(default_factory=AlarmSettings, metadata={"rule": MAPPING})
    # Names and patterns of secrets that pages and commands mask, beside those that are known.
    mask: MaskSettings = field(default_factory=MaskSettings, metadata={"rule": MAPPING})
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata={"rule": MAPPING})  # by name
    # None = the defaults, and workers do not relay.
    outbox: OutboxSettings | None = field(default=None, metadata={"rule": MAPPING._replace(optional=True)})

    @property
    def renew_seconds(self) -> float:
        """Seconds between two renewals of a lease."""
        return self.heartbeat_seconds if self.heartbeat_seconds is not None else self.lease_seconds / 4

    @property
    def backoff(self) -> Backoff:
        """The wait between attempts, where a task has none of its own."""
        return Backoff(self.backoff_base_seconds, self.backoff_factor, self.backoff_cap_seconds)

    @property
    def outbox_settings(self) -> OutboxSettings:
        """OUTBOX, or its defaults."""
        return self.outbox or OutboxSettings()

    def queue_lease_seconds(self, queue: str, worker_seconds: float) -> float:
        """The lease length of jobs of `queue`: its own if that is longer. Heartbeats fit the worker's."""
        return max(worker_seconds, self._queue(queue).lease_seconds or 0.0)

    def queue_ack_each(self, queue: str) -> bool:
        """Return whether jobs of `queue` are acked one by one."""
        return self._queue(queue).ack_each

    def queue_on_key_failure(self, queue: str) -> str:
        """The policy for an ordering key of `queue` whose job is FAILED: "block", "halt" or "skip"."""
        return self._queue(queue).on_key_failure or self.on_key_failure

    def queue_retention(self, queue: str, state: str) -> Kept:
        """How long jobs of `queue` that ended as "done", "failed" or "canceled" are kept."""
        for known in (self._queue(queue).retention, self.retention, DEFAULT):
            if state in known:
                return known[state]
        raise KeyError(state)

    def queue_max_attempts(self, queue: str) -> int:
        """max_attempts of jobs of `queue` that have none of their own."""
        return self._queue(queue).max_attempts or self.max_attempts

    def _queue(self, queue: str) -> QueueSettings:
        return self.queues.get(queue, _PLAIN_QUEUE)


_READERS: dict[str, Callable[[Any], tuple[Any, list[str]]]] = {
    "queues": lambda raw: read_queues(raw, _values),
    "outbox": lambda raw: _read_outbox(raw),
    "retention": read_retention,
    "schedules": read_schedules,
    "alarms": read_alarms,
    "mask": read_mask,
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
        if name in values:
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


def _read_outbox(raw: Mapping[object, object] | None) -> tuple[OutboxSettings | None, list[str]]:
    if raw is None:
        return None, []
    values, found = _values(OutboxSettings, raw)
    problems = [f"OUTBOX: {problem}" for problem in found]
    wrong = {item[0]: p for item in values.get("routes", {}).items() if (p := _route_problem(*item))}
    if wrong:
        values["routes"] = {name: route for name, route in values["routes"].items() if name not in wrong}
    return OutboxSettings(**values), [*problems, *wrong.values()]


def _route_problem(pattern: object, route: object) -> str | None:
    """The problem of a route, without its value: a URL may hold a password."""
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
    """Return whether this process runs tests: with Django's runner, pytest or any unittest runner.

    Some runners do not call setup_test_environment(), which adds mail.outbox.
    """
    runners = sys.modules.get("unittest.signals")
    # Every TextTestRunner registers its result in this module, so that Ctrl-C can stop it.
    return hasattr(mail, "outbox") or "pytest" in sys.modules or bool(getattr(runners, "_results", None))


def is_development() -> bool:
    """Return whether this process runs with DEBUG, or runs tests."""
    return bool(django_settings.DEBUG) or is_test_run()
