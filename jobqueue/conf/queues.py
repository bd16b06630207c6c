"""JOBQUEUE["QUEUES"]: what differs in single queues. RETENTION: how long ended jobs are kept, and how many of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from jobqueue.base.durations import parse_seconds
from jobqueue.base.validation import check_queue, did_you_mean
from jobqueue.conf.rules import (
    AGE_OR_0,
    BOOL,
    CONCURRENCY,
    COUNT,
    JOB_POLICY,
    MAPPING,
    RATE,
    SECONDS,
    WHEN_FULL,
    is_number,
    setting,
)
from jobqueue.exceptions import InvalidValue

#: the states in which a job has ended
STATES = ("done", "failed", "canceled")
#: an age is so many years at most
YEARS_MAX = 100
_MEANING = "a duration such as '7d', a dict with AGE or KEEP, or None"
_KEPT_KEYS = ("AGE", "KEEP", "ARCHIVE")


@dataclass(frozen=True, slots=True)
class Kept:
    """Which ended jobs of one state are kept: those that ended `age_seconds` ago or later, of these the `most` newest.

    None: no bound. The newest are those that fell due last. The others are deleted, or moved to the archive.
    """

    age_seconds: float | None = None
    most: int | None = None
    archive: bool = False

    @property
    def all(self) -> bool:
        """True if none is deleted."""
        return self.age_seconds is None and self.most is None


DEFAULT: Mapping[str, Kept] = {
    "done": Kept(7 * 86_400.0),
    "failed": Kept(90 * 86_400.0),
    "canceled": Kept(7 * 86_400.0),
}


def read_retention(raw: Mapping[object, object] | None) -> tuple[dict[str, Kept], list[str]]:
    """RETENTION by state, as far as it is set, and a list of what is wrong with it. None: everything is kept."""
    if raw is None:
        return {state: Kept() for state in STATES}, []
    found: dict[str, Kept] = {}
    problems: list[str] = []
    for state, value in raw.items():
        if state not in STATES:
            hint = did_you_mean(state, STATES) or f" (states: {', '.join(STATES)})"
            problems.append(f"RETENTION: unknown state {state!r}{hint}")
            continue
        kept, problem = _read_kept(value)
        if problem:
            problems.append(f"RETENTION[{state!r}] {problem}")
        else:
            found[state] = kept
    return found, problems


def _read_kept(value: object) -> tuple[Kept, str]:
    """The value of one state, and what is wrong with it."""
    if not isinstance(value, Mapping):
        age, problem = read_age(value)
        return Kept(age), problem
    if unknown := [key for key in value if key not in _KEPT_KEYS]:
        hint = did_you_mean(unknown[0], _KEPT_KEYS) or "; it has AGE, KEEP and ARCHIVE"
        return Kept(), f"has the unknown key {unknown[0]!r}{hint}"
    if not {"AGE", "KEEP"} & {*value}:
        return Kept(), f"must be {_MEANING}"
    age, problem = read_age(value.get("AGE"))
    most: Any = value.get("KEEP")
    archive: Any = value.get("ARCHIVE", False)
    if most is not None and not COUNT.allows(most):
        return Kept(), f"must have a KEEP that is {COUNT.meaning}, or None; it is {most!r}"
    if not BOOL.allows(archive):
        return Kept(), f"must have an ARCHIVE that is {BOOL.meaning}; it is {archive!r}"
    return Kept(age, most, archive), problem


def read_age(value: object) -> tuple[float | None, str]:
    """The seconds of an age, 0 or more, and what is wrong with it."""
    if value is None:
        return None, ""
    seconds: object = value
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        try:
            return parse_seconds(value, zero=True, years=YEARS_MAX), ""
        except InvalidValue as error:
            return None, f"is wrong: {error}"
    if is_number(seconds) and AGE_OR_0.allows(seconds):
        return float(seconds), ""
    return None, f"must be {_MEANING}, is {value!r}"


ReadValues: TypeAlias = Callable[[type, Mapping[object, object]], tuple[dict[str, Any], list[str]]]


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """JOBQUEUE["QUEUES"][name]: what differs in one queue. None = as in all queues."""

    lease_seconds: float | None = setting(None, SECONDS)
    max_attempts: int | None = setting(None, COUNT)
    ack_each: bool = setting(False, BOOL)  # the end of each job is committed before its thread starts another job
    starve_seconds: float | None = setting(None, SECONDS)  # a job that is due for longer precedes higher priorities
    on_key_failure: str | None = setting(None, JOB_POLICY)  # as ON_KEY_FAILURE
    # How many of its jobs run at once in all workers; (least, most): between these, by depth and trouble.
    concurrency: int | tuple[int, int] | None = setting(None, CONCURRENCY, optional=True)
    rate: str | None = setting(None, RATE, optional=True)  # how fast its jobs start in all workers
    max_ready: int | None = setting(None, COUNT, optional=True)  # so many of its jobs may be due and wait
    when_full: str = setting("refuse", WHEN_FULL)  # what a job meets that would be one more than MAX_READY
    # As RETENTION, for the states that are set here; None = its ended jobs are kept.
    retention: Mapping[str, Kept] = field(default_factory=dict, metadata={"rule": MAPPING._replace(optional=True)})


def read_queues(raw: Mapping[object, object], read_values: ReadValues) -> tuple[dict[str, QueueSettings], list[str]]:
    """QUEUES by name, and a list of what is wrong with it; a wrong value is left at its default."""
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
        values, found = read_values(QueueSettings, options)
        if "retention" in values:
            values["retention"], wrong = read_retention(values["retention"])
            found += wrong
        problems += [f"{where}: {problem}" for problem in found]
        queues[name] = QueueSettings(**values)
    return queues, problems
