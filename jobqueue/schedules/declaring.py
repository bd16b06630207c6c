"""@schedule, and the schedules that the code and the settings of this process declare.

Needs no models: the decorator runs before the app registry is ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from django.conf import settings
from django.utils.module_loading import import_string

from jobqueue.base.compat import AnyTask, Task
from jobqueue.base.durations import to_seconds
from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_instant, check_int, check_text, did_you_mean
from jobqueue.conf import SCHEDULE_KEYS, Settings, load
from jobqueue.conf.task_spec import spec_of
from jobqueue.db.dialect import Problem
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError
from jobqueue.schedules.timing import EVERY_SECONDS_MIN, Timing, check_cron, check_zone
from jobqueue.tasks import registry
from jobqueue.tasks.versions import payload_of

T = TypeVar("T", bound=AnyTask)

NAME_CHARS = 255
MISSED, OVERLAP = ("latest", "all", "skip"), ("allow", "skip", "queue")
MISSED_LIMIT, MISSED_LIMIT_MAX = 100, 1000
logger = logging.getLogger("jobqueue.worker")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a schedule besides its task, checked and in the units of the fields."""

    timing: Timing
    missed: str = "latest"
    missed_limit: int = MISSED_LIMIT
    overlap: str = "allow"
    jitter_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule that the code ("code") or the settings ("settings") of this process declare."""

    name: str
    task: AnyTask
    args: list[JSON]
    kwargs: dict[str, JSON]
    terms: Terms
    source: str


_declared: dict[str, Declared] = {}


def schedule(
    *,
    cron: str | None = None,
    every: float | timedelta | str | None = None,
    timezone: str | None = None,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    missed: Literal["latest", "all", "skip"] = "latest",
    missed_limit: int = MISSED_LIMIT,
    overlap: Literal["allow", "skip", "queue"] = "allow",
    jitter_seconds: float | timedelta | str = 0,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
) -> Callable[[T], T]:
    """Enqueue a task at each tick of a cron expression, or `every` so many seconds (at least 1) from the Unix epoch.

    Stands above @task and returns the task; may be repeated under other names. `timezone` of the expression: default
    TIME_ZONE. `name`: default the task's path. `missed`: of ticks at which no worker ran, the "latest" one fires, "all"
    of the newest `missed_limit` (1 to 1000), or none ("skip"). `overlap`: a tick whose predecessor's job has not ended
    fires all the same ("allow"), does not ("skip"), or when that job has ended ("queue"). `jitter_seconds`: each job is
    due up to so much later. Ticks lie from `start_at` to `end_at` (aware); the first one is the first after a worker
    has seen the schedule. Raises InvalidValue, InvalidType, WrongSettings without cronsim; then nothing is declared.
    """
    given = {
        "cron": cron, "every": every, "timezone": timezone, "missed": missed, "missed_limit": missed_limit,
        "overlap": overlap, "jitter_seconds": jitter_seconds, "start_at": start_at, "end_at": end_at,
    }  # fmt: skip

    def decorate(task: T) -> T:
        if not isinstance(task, Task):
            shown = getattr(task, "__qualname__", type(task).__name__)
            raise InvalidType(
                f"@schedule needs a task, got {shown}. Nothing was declared; write @schedule above @task."
            )
        declare(name or task.module_path, task, args, kwargs, given, "code")
        return task

    return decorate


def declare(
    name: str,
    task: AnyTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    given: Mapping[str, Any],
    source: str,
) -> None:
    """Add a schedule to those of this process. A reloaded module replaces its own. Raises as schedule()."""
    check_name(name)
    terms = check_terms(name, **given)
    values = check_arguments(name, task, args, kwargs)
    known = _declared.get(name)
    if known is not None and (known.task.func is task.func or known.task.module_path != task.module_path):
        raise InvalidValue(
            f"there are two schedules of the name {name!r}, of {known.task.module_path} and of {task.module_path}. The "
            "second one was not declared; give it another name=."
        )
    _declared[name] = Declared(name, task, *values, terms, source)


def withdraw(name: str) -> None:
    """Remove a schedule from those of this process."""
    _declared.pop(name, None)


def declared() -> Mapping[str, Declared]:
    """The schedules of this process by name."""
    return _declared


def check_name(name: object) -> str:
    """`name` if it is a text of 1 to 255 characters without control characters."""
    text = check_text(name, "name of a schedule")
    if not 1 <= len(text) <= NAME_CHARS or not text.isprintable():
        raise InvalidValue(
            f"the name of a schedule has 1 to {NAME_CHARS} printable characters, got {text[:40]!r}. "
            "Nothing was written."
        )
    return text


def check_arguments(name: str, task: AnyTask, args: object, kwargs: object) -> tuple[list[JSON], dict[str, JSON]]:
    """The arguments of each job as JSON, if the function of `task` takes them."""
    if not isinstance(args, (tuple, list)) or not (kwargs is None or isinstance(kwargs, Mapping)):
        raise InvalidType(f"schedule {name!r}: args is a list and kwargs a dict. Nothing was written.")
    try:
        payload = payload_of(task, args, kwargs or {})
    except JobQueueError as error:
        raise type(error)(f"schedule {name!r}: {error}") from None
    return payload["args"], payload["kwargs"]


def check_terms(
    name: str,
    *,
    cron: object = None,
    every: object = None,
    timezone: object = None,
    missed: object = "latest",
    missed_limit: object = MISSED_LIMIT,
    overlap: object = "allow",
    jitter_seconds: object = 0,
    start_at: object = None,
    end_at: object = None,
    phase_seconds: float = 0.0,
) -> Terms:
    """The terms of schedule `name`, as schedule() takes them. Raises InvalidValue, InvalidType."""
    of = f"schedule {name!r}"
    if (cron is None) == (every is None):
        both = "both" if cron is not None else "neither"
        raise InvalidValue(f"{of} has {both} of cron and every. Nothing was written; give one of them.")
    zone = check_zone(settings.TIME_ZONE or "UTC" if timezone is None else timezone, f"{of}: timezone")
    start, end = _check_bounds(start_at, end_at, of)
    timing = Timing(
        cron=None if cron is None else check_cron(cron, f"{of}: cron"),
        every_seconds=None if every is None else _check_every(every, of),
        timezone=zone,
        start_at=start,
        end_at=end,
        phase_seconds=phase_seconds,
    )
    return Terms(
        timing=timing,
        missed=_one_of(missed, MISSED, f"{of}: missed"),
        missed_limit=check_int(missed_limit, f"{of}: missed_limit", 1, MISSED_LIMIT_MAX),
        overlap=_one_of(overlap, OVERLAP, f"{of}: overlap"),
        jitter_seconds=to_seconds(jitter_seconds, f"{of}: jitter_seconds", zero=True),
    )


def _check_bounds(start_at: object, end_at: object, of: str) -> tuple[datetime | None, datetime | None]:
    start = None if start_at is None else check_instant(start_at, f"{of}: start_at")
    end = None if end_at is None else check_instant(end_at, f"{of}: end_at")
    if start is not None and end is not None and end < start:
        raise InvalidValue(f"{of} ends at {end} before it starts at {start}. Nothing was written.")
    return start, end


def _check_every(every: object, of: str) -> float:
    seconds = to_seconds(every, f"{of}: every")
    if seconds < EVERY_SECONDS_MIN:
        raise InvalidValue(
            f"{of}: every is {seconds:g} seconds; the least is {EVERY_SECONDS_MIN:g}. Nothing was written."
        )
    return seconds


def _one_of(value: object, choices: Sequence[str], what: str) -> str:
    if not isinstance(value, str) or value not in choices:
        named = ", ".join(map(repr, choices))
        raise InvalidValue(f"{what} is {value!r:.60}; it is one of {named}. Nothing was written.")
    return value


def declare_settings() -> None:
    """Declare the schedules of the settings. Call it when the tasks are registered; a wrong one is logged, left out."""
    for name, error in problems(load().schedules):
        logger.error("ignoring SCHEDULES[%r]: %s", name, error)


def problems(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Exception]]:
    """Declare these schedules of the settings; the name and the error of each that is wrong."""
    for name in [name for name, one in declared().items() if one.source == "settings"]:
        withdraw(name)
    for name, entry in entries.items():
        try:
            _declare(name, entry)
        except Exception as error:
            # Also what the module of the task raises when it is imported: the others are declared all the same.
            yield name, error if isinstance(error, JobQueueError) else InvalidValue(f"{type(error).__name__}: {error}")


def check_problems(conf: Settings) -> Iterator[Problem]:
    """E008 for each wrong schedule of the settings; W040 for each schedule that ticks while its key is held."""
    for name, error in problems(conf.schedules):
        hint = "Workers leave it out. Correct the setting."
        yield Problem("E008", f"JOBQUEUE: SCHEDULES[{name!r}]: {error}", hint)
    for one in list(declared().values()):
        spec = spec_of(one.task)
        if spec.dedupe_key is None or spec.unique is not None:
            continue
        held = conf.dedupe_seconds if spec.unique_seconds is None else spec.unique_seconds
        ticks = one.terms.timing.first(2, datetime.now(UTC))
        if len(ticks) == 2 and (held is None or (ticks[1] - ticks[0]).total_seconds() < held):
            yield Problem(
                "W040",
                f"The schedule {one.name!r} ticks more often than the dedupe key of {one.task.module_path} is free: a "
                "tick adds no job while the last job holds the key, which it does for a time after its end.",
                'Give the task unique="unfinished", which frees the key when the job ends, or hold the key for less.',
            )


def _declare(name: str, entry: Mapping[str, Any]) -> None:
    if name in declared():
        raise InvalidValue(
            f"there are two schedules of the name {name!r}, in the settings and in the code "
            f"({declared()[name].task.module_path}). That of the code counts; give one of them another name."
        )
    given = {argument: entry[key] for key, argument in SCHEDULE_KEYS.items() if key in entry}
    declare(name, task_of(entry["TASK"]), entry.get("ARGS", ()), entry.get("KWARGS"), given, "settings")


def task_of(path: str) -> AnyTask:
    """The task of a path, whose module is imported if it has to be. Raises InvalidValue if there is none."""
    task = registry.find_task(path)
    if task is not None:
        return task
    try:
        found = import_string(path)
    except ImportError:
        found = None
    if isinstance(found, Task):
        return found
    raise InvalidValue(
        f"no task is called {path!r:.200}{did_you_mean(path, registry.names()[0])}. Nothing was written; give the "
        "dotted path of a task in the tasks.py of an app."
    )
