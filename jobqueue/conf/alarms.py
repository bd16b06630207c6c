"""JOBQUEUE["ALARMS"]: thresholds for the figures of queues and for silent workers, and who is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from jobqueue.base.validation import INT_MAX, SECONDS_MAX, check_queue, did_you_mean
from jobqueue.conf.rules import Rule, is_number, whole_number
from jobqueue.exceptions import JobQueueError

#: counts of jobs are exact up to this, so that a higher threshold would never be reached
COUNT_MAX = 10_000
#: keys of ALARMS that are no queues
NOTIFY, WORKERS, EVERY_QUEUE = "NOTIFY", "WORKERS", "*"
#: the alarms of WORKERS
SILENT, STALLED, EXHAUSTED, REFUSED, LATE = "silent", "stalled", "exhausted", "refused_connections", "late_schedules"
_SECONDS = Rule(lambda v: is_number(v) and 0 < v <= SECONDS_MAX, f"a number of seconds above 0 and up to {SECONDS_MAX}")
_JOBS = Rule(lambda v: is_number(v) and 0 < v <= COUNT_MAX, f"a number above 0 and up to {COUNT_MAX}")
_RATE = Rule(lambda v: is_number(v) and 0 < v <= INT_MAX, f"a number above 0 and up to {INT_MAX}")
_SHARE = Rule(lambda v: is_number(v) and 0 < v <= 1, "a number above 0 and up to 1")
#: what a queue can have a threshold for: the figures of stats.QueueStats, and how long its oldest age has grown
FIGURES: Mapping[str, Rule] = {
    "ready": _JOBS,
    "scheduled": _JOBS,
    "held": _JOBS,
    "running": _JOBS,
    "failed": _JOBS,
    "oldest_age_seconds": _SECONDS,
    "throughput_per_minute": _RATE,
    "dead_per_hour": _RATE,
    "error_rate": _SHARE,
    "rising_age_seconds": _SECONDS,
}
_OF_WORKERS: Mapping[str, Rule] = dict.fromkeys((SILENT, STALLED, EXHAUSTED, REFUSED, LATE), whole_number(1, INT_MAX))
_ENTRY = (
    "must be 'log', 'mail', {'MAIL': [addresses]}, {'WEBHOOK': an http or https URL} or {'HOOK': a dotted path to a "
    "function}"
)


class Recipient(NamedTuple):
    """One entry of NOTIFY. A webhook's URL may hold a password: it is never shown."""

    kind: str  # "log", "mail", "MAIL", "WEBHOOK" or "HOOK"
    places: tuple[str, ...] = ()  # the addresses, the URL or the path

    def __repr__(self) -> str:
        return f"Recipient({self.kind!r})"


@dataclass(frozen=True, slots=True)
class AlarmSettings:
    """The setting ALARMS. Without thresholds nothing is checked."""

    queues: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # also "*": those without an entry
    workers: Mapping[str, float] = field(default_factory=dict)
    notify: tuple[Recipient, ...] = ()

    @property
    def watches(self) -> bool:
        """True if there is a threshold."""
        return any(self.queues.values()) or bool(self.workers)

    def of_queue(self, queue: str) -> Mapping[str, float]:
        """The thresholds of one queue: those of its own entry alone, if it has one."""
        return self.queues.get(queue, self.queues.get(EVERY_QUEUE, {}))


def read_alarms(raw: Mapping[object, object]) -> tuple[AlarmSettings, list[str]]:
    """ALARMS, and a list of what is wrong with it; what is wrong is left out."""
    queues: dict[str, Mapping[str, float]] = {}
    workers: Mapping[str, float] = {}
    notify: list[Recipient] = []
    problems: list[str] = []
    for key, value in raw.items():
        where = f"ALARMS[{key!r}]"
        if key == NOTIFY:
            notify, found = _read_notify(value, where)
        elif key == WORKERS:
            workers, found = _read_thresholds(value, where, _OF_WORKERS)
        elif problem := _queue_problem(key):
            found = [f"{where}: {problem}"]
        else:
            queues[str(key)], found = _read_thresholds(value, where, FIGURES)
        problems += found
    return AlarmSettings(queues, workers, tuple(notify)), problems


def _queue_problem(key: object) -> str:
    if key == EVERY_QUEUE:
        return ""
    try:
        check_queue(key)
    except JobQueueError as error:
        return f"keys are names of queues, '*', 'WORKERS' and 'NOTIFY': {error}"
    return ""


def _read_thresholds(value: object, where: str, known: Mapping[str, Rule]) -> tuple[dict[str, float], list[str]]:
    if not isinstance(value, Mapping):
        return {}, [f"{where} must be a dict of thresholds"]
    found: dict[str, float] = {}
    problems = []
    for name, threshold in value.items():
        if name not in known:
            reserved = "; a queue of this name has the thresholds of '*'" if known is _OF_WORKERS else ""
            hint = did_you_mean(name, known) or f"; it has {', '.join(known)}{reserved}"
            problems.append(f"{where} has the unknown name {name!r}{hint}")
        elif problem := known[name].problem(f"{where}[{name!r}]", threshold):
            problems.append(problem)
        else:
            found[name] = float(threshold)
    return found, problems


def _read_notify(value: object, where: str) -> tuple[list[Recipient], list[str]]:
    if isinstance(value, Mapping):
        return [], [f"{where} must be a list of who is told; a queue of this name has the thresholds of '*'"]
    if not isinstance(value, (list, tuple)):
        return [], [f"{where} must be a list of who is told"]
    found: list[Recipient] = []
    problems = []
    for number, entry in enumerate(value):
        recipient = _recipient(entry)
        if recipient is None:
            problems.append(f"{where}[{number}] {_ENTRY}")
        elif recipient in found:
            problems.append(f"{where}[{number}] is there twice: it would be told twice")
        else:
            found.append(recipient)
    return found, problems


def _recipient(entry: object) -> Recipient | None:
    """An entry of NOTIFY; None if it is wrong."""
    if entry in ("log", "mail"):
        return Recipient(str(entry))
    if not isinstance(entry, Mapping) or len(entry) != 1:
        return None
    ((kind, value),) = entry.items()
    if kind == "MAIL" and isinstance(value, (list, tuple)):
        right = bool(value) and all(map(_is_address, value))
        return Recipient(kind, tuple(value)) if right else None
    allowed = _ONE_PLACE.get(kind) if isinstance(kind, str) else None
    return Recipient(str(kind), (str(value),)) if allowed is not None and allowed(value) else None


def _is_address(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[^@\s]+@[^@\s]+", value) is not None


def _is_url(value: object) -> bool:
    if not isinstance(value, str) or re.search(r"[\s\x00-\x1f\x7f]", value):
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_path(value: object) -> bool:
    return isinstance(value, str) and "." in value and all(map(str.isidentifier, value.split(".")))


_ONE_PLACE: Mapping[str, Callable[[object], bool]] = {"WEBHOOK": _is_url, "HOOK": _is_path}
