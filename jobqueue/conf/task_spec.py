"""The options of @task and using(): one table, whose rows are the fields of TaskSpec.

A new option is a row here, its name in TaskFields (or in the fields that using() takes too), and the code that acts on
it. Needs no models: @task comes before the apps are ready.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from asgiref.sync import iscoroutinefunction

from jobqueue.backoff import Backoff, Wait, checked_wait, least_wait, takes_task_result
from jobqueue.base.durations import parse_rate, to_seconds
from jobqueue.base.payload import JSON
from jobqueue.base.validation import (
    TASK_CHARS,
    check_instant,
    check_int,
    check_key,
    check_queue,
    check_seconds,
    check_tag,
)
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures import FailureCause, dotted_path
from jobqueue.failures.dependencies import check_dependency
from jobqueue.failures.project import read_causes

TAGS_MAX = 16
#: the values of unique, and what a row stores for them (models.job); None: 0
UNIQUE_MODES = {"waiting": 1, "unfinished": 2}

#: a key, or a function of the task's arguments that returns one (or None: no key)
DedupeKey: TypeAlias = str | bytes | Callable[..., str | bytes | None]
#: seconds from the moment it is due, or an instant
Expires: TypeAlias = float | timedelta | datetime
Errors: TypeAlias = type[BaseException] | Sequence[type[BaseException]]


class _Fields(TypedDict, total=False):
    max_attempts: int | None
    backoff: Wait | None
    retry_on: Errors | None
    no_retry_on: Errors | None
    retry_until_seconds: float | timedelta | str | None
    move_after: int | None
    move_to: str | None
    lease_seconds: float | None
    timeout_seconds: float | None
    hard_timeout_seconds: float | None
    dependency: str | None
    result_ttl_seconds: float | timedelta | str | None
    dedupe_key: DedupeKey | None
    unique: Literal["waiting", "unfinished"] | None
    unique_seconds: float | timedelta | str | None
    on_conflict: Literal["keep", "replace"] | None
    tags: Sequence[str] | None
    ordering_key: DedupeKey | None
    concurrency_key: DedupeKey | None
    expires: Expires | None


class UsingFields(_Fields, total=False):
    """The arguments of using(); None leaves a field unchanged."""

    priority: int | None
    queue_name: str | None
    run_after: datetime | None
    backend: str | None
    ack_each: bool | None


class TaskFields(_Fields, total=False):
    """What @task takes besides takes_context. The options that using() lacks are those of the task, not of a job."""

    queue_name: str
    priority: int
    backend: str
    ack_each: bool
    on_crash: Literal["retry", "fail", "hold"]
    concurrency_limit: int | None
    rate_limit: str | None
    version: int
    aliases: Sequence[str]
    causes: Mapping[str, str]


class Option(NamedTuple):
    """A row of the table: how a value is checked, and where a job stores the one that using() gave it."""

    check: Callable[[Any, str], Any]  # (value, name of the option) -> the value as the task keeps it
    column: str | None = None  # the field of NewJob that has it
    to_column: Callable[[Any], Any] = lambda value: value
    in_options: bool = False  # whether job.options has it, if it differs from the task's
    is_limit: bool = False  # whether it may keep jobs from starting: claims check each job of a task that has it
    to_json: Callable[[Any], JSON] = lambda value: value
    from_json: Callable[[Any], Any] | None = None  # None: `check`


def _option(check: Callable[[Any, str], Any], default: object = None, **row: Any) -> Any:
    return field(default=default, metadata={"option": Option(check, **row)})


def _count(value: Any, name: str) -> int:
    return check_int(value, name, 1)


def _as_given(check: Callable[[Any, str], object]) -> Callable[[Any, str], Any]:
    """A check after which the task keeps what was given: an int of seconds stays one in the JSON of a row."""

    def checked(value: Any, name: str) -> Any:
        check(value, name)
        return value

    return checked


def _wait(value: Any, name: str) -> Any:
    wait = checked_wait(value)
    if callable(wait):
        _check_function(wait)
    return wait


def _check_function(function: Callable[..., object]) -> None:
    """Raise InvalidType for a back-off function that cannot be called as wait_seconds() calls it."""
    if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise InvalidType("backoff is a coroutine function, which nobody awaits. Give a plain function.")
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of C, which does not tell its parameters
    try:
        if takes_task_result(function):
            found.bind(exception=None, task_result=None)
        else:
            found.bind(1, None)
    except TypeError:
        raise InvalidType(
            f"backoff is a function of {found}. It must take (failures, error) or (exception, task_result)."
        ) from None


def _wait_to_json(wait: Any) -> JSON:
    if isinstance(wait, Backoff):
        return list(astuple(wait))
    if isinstance(wait, tuple):
        return {"table": list(wait)}
    if callable(wait):
        raise InvalidType("a backoff function belongs to @task: a job cannot carry it. Give using() a Backoff.")
    return wait


def _wait_from_json(value: Any) -> object:
    if isinstance(value, dict):
        return checked_wait(value["table"])
    return checked_wait(Backoff(*value) if isinstance(value, list) else value)


def _classes(value: Any, name: str) -> tuple[type[BaseException], ...]:
    """A tuple: isinstance() needs one, and tasks are hashable."""
    found = (value,) if isinstance(value, type) else value
    if not isinstance(found, (tuple, list, set, frozenset)) or not found:
        raise InvalidType(f"{name} must be an exception class or several, got {value!r:.80}.")
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidType(f"{name} must be exception classes, got {kind!r:.80}.")
    return tuple(found)


#: a row has the names of classes
_ERRORS: dict[str, Any] = {
    "in_options": True,
    "to_json": lambda kinds: [dotted_path(kind) for kind in kinds],
    "from_json": lambda names: tuple(str(name) for name in names),
}


def _check_fixed_key(value: Any, name: str) -> None:
    if not callable(value):
        check_key(value, name)


def _one_of(*words: str, or_none: str = "") -> Callable[[Any, str], str]:
    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise InvalidValue(
                f"{name} must be one of {', '.join(words)}{or_none}, got {value!r:.40}. Nothing was written."
            )
        return value

    return check


def _tags(value: Any, name: str) -> tuple[str, ...]:
    """Remove repetitions."""
    if isinstance(value, str) or not isinstance(value, (tuple, list, set, frozenset)):
        raise InvalidType(f"tags must be a list of names, got {value!r:.60}. Nothing was written; write ('billing',).")
    found = tuple(dict.fromkeys(sorted(value, key=str) if isinstance(value, (set, frozenset)) else value))
    if len(found) > TAGS_MAX:
        raise InvalidValue(f"a job has at most {TAGS_MAX} tags, got {len(found)}. Nothing was written.")
    for tag in found:
        check_tag(tag)
    return found


def _check_expires(value: Any, name: str) -> None:
    if isinstance(value, datetime):
        check_instant(value, name)
    else:
        check_seconds(value.total_seconds() if isinstance(value, timedelta) else value, name)


def _bool(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidType(f"{name} must be True or False, got {value!r}.")
    return value


def _paths(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, (tuple, list)) or not all(isinstance(path, str) for path in value):
        raise InvalidType(f"aliases must be a list of dotted paths, got {value!r:.80}.")
    for path in value:
        if not all(part.isidentifier() for part in path.split(".")) or len(path) > TASK_CHARS:
            raise InvalidValue(f"the alias {path[:80]!r} is not a dotted path of at most {TASK_CHARS} characters.")
    return tuple(value)


_seconds, _key = _as_given(check_seconds), _as_given(_check_fixed_key)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The options of a task as it keeps them: what was given has been checked, and durations are seconds."""

    __slots__ = ()

    #: runs that may end in failure or loss before the job is FAILED (None: the queue's, 25)
    max_attempts: int | None = _option(_count, column="max_attempts")
    #: the wait between attempts: a Backoff, seconds, a table of seconds, or a function (None: JOBQUEUE's)
    backoff: Backoff | float | tuple[float, ...] | Callable[..., float] | None = _option(
        _wait, in_options=True, to_json=_wait_to_json, from_json=_wait_from_json
    )
    #: only these exceptions are retried (None: all). Lost runs are always retried. Names of classes: from a row
    retry_on: tuple[type[BaseException] | str, ...] | None = _option(_classes, **_ERRORS)
    #: these are not retried; takes precedence over retry_on
    no_retry_on: tuple[type[BaseException] | str, ...] | None = _option(_classes, **_ERRORS)
    #: no retry begins later than this after the job fell due, or was retried by hand
    retry_until_seconds: float | None = _option(to_seconds, in_options=True)
    #: after this many failures the job continues in the queue move_to
    move_after: int | None = _option(_count, in_options=True)
    move_to: str | None = _option(lambda value, name: check_queue(value), in_options=True)
    #: lease length, if longer than the worker's; for jobs that cannot heartbeat (None: the worker's)
    lease_seconds: float | None = _option(_seconds, column="lease_seconds")
    #: SoftTimeout is raised inside the task after this long (None: JOBQUEUE's, no limit)
    timeout_seconds: float | None = _option(_seconds, in_options=True)
    #: its worker process is killed after this long, and only this job charged (None: JOBQUEUE's)
    hard_timeout_seconds: float | None = _option(_seconds, in_options=True)
    #: commit the end of each job separately, before its thread starts another one: a crash repeats only what was
    #: running. Slower; by default ends are written together, a few milliseconds later
    ack_each: bool = _option(_bool, False, in_options=True, from_json=bool)
    #: the outside service that its runs need; its retries wait while they would be too many of its runs
    dependency: str | None = _option(lambda value, name: check_dependency(value), column="dependency", in_options=True)
    #: its DONE jobs are deleted so long after their end (None: as RETENTION says)
    result_ttl_seconds: float | None = _option(to_seconds, in_options=True)
    #: str or bytes of 1-64 bytes, or a function of the arguments; enqueue returns the job that holds the key
    dedupe_key: DedupeKey | None = _option(_key)
    #: "waiting": the key is held until the claim; "unfinished": until the end (None: DEDUPE_SECONDS longer)
    unique: str | None = _option(
        _one_of(*UNIQUE_MODES, or_none=", or None"),
        column="unique_mode",
        to_column=lambda value: UNIQUE_MODES.get(value, 0),
    )
    #: the key is held for so long after the enqueue at most; with unique=None for exactly so long. Without a
    #: dedupe_key, `unique` and this make a hash of the task and its arguments the key
    unique_seconds: float | None = _option(to_seconds, column="unique_seconds")
    #: what enqueue does with a job that waits and holds the key: "keep" it (None), or "replace" its contents
    on_conflict: str | None = _option(
        _one_of("keep", "replace", or_none=", or None"), column="replaces", to_column=lambda value: value == "replace"
    )
    #: names by which jobs are found: Job.objects.tagged("billing")
    tags: tuple[str, ...] = _option(_tags, (), column="tags")
    #: as dedupe_key; jobs of a queue with equal keys run strictly one after another, in the order of enqueue
    ordering_key: DedupeKey | None = _option(_key)
    #: as dedupe_key; jobs of a queue with equal keys share their limits
    concurrency_key: DedupeKey | None = _option(_key)
    #: so many of its jobs run at once in a queue; with a concurrency_key, of each key (None: no limit)
    concurrency_limit: int | None = _option(_count, is_limit=True)
    #: "10/s" or "100/m": how fast its jobs start in a queue; with a concurrency_key, those of each key
    rate_limit: str | None = _option(_as_given(parse_rate), is_limit=True)
    #: no attempt starts after this: an aware datetime, or seconds from the moment the job is due
    expires: Expires | None = _option(_as_given(_check_expires))
    #: what follows a lost run: "retry", "fail" (FAILED) or "hold" (it waits for retry() or discard())
    on_crash: str = _option(_one_of("retry", "fail", "hold"), "retry")
    #: of the arguments; increase it when they change, and add an upcaster()
    version: int = _option(_count, 1)
    #: earlier dotted paths of this task, whose jobs it runs
    aliases: tuple[str, ...] = _option(_paths, ())
    #: the cause of exceptions by class path, {"app.CardDeclined": "DATA"}; precedes JOBQUEUE["CAUSES"]
    causes: Mapping[str, FailureCause] = field(
        default_factory=dict,
        hash=False,  # tasks are hashable
        metadata={"option": Option(read_causes)},
    )

    @property
    def expiry(self) -> float | datetime | None:
        """`expires` as an instant or as seconds, which a stored template can have."""
        if isinstance(self.expires, timedelta):
            return self.expires.total_seconds()
        return float(self.expires) if isinstance(self.expires, int) else self.expires


OPTIONS: Mapping[str, Option] = {one.name: one.metadata["option"] for one in fields(TaskSpec)}
_COLUMNS = [(name, option.column, option.to_column) for name, option in OPTIONS.items() if option.column is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(TaskSpec):
    """The options of one job: those of its task, or other values that using() gave it."""


NO_OPTIONS = JobOptions()


def spec_of(task: object) -> TaskSpec:
    """The options of a task; the defaults for a task of another backend, and for none."""
    return task if isinstance(task, TaskSpec) else NO_OPTIONS


def columns_of(spec: TaskSpec) -> dict[str, Any]:
    """The fields of a NewJob that have options of its task, with their values; None of those that are not set."""
    rows = ((getattr(spec, name), column, to_column) for name, column, to_column in _COLUMNS)
    return {column: to_column(value) for value, column, to_column in rows if value is not None}


def check_options(spec: TaskSpec, path: str, names: Collection[str] = OPTIONS) -> None:
    """Check these options of the task of this path, and how all go together; keep them as their rows say.

    Raises InvalidType and InvalidValue with the path of the task.
    """
    try:
        for name in names:
            if (option := OPTIONS.get(name)) is None:
                continue
            value = getattr(spec, name)
            if not (value is None and getattr(NO_OPTIONS, name) is None):
                object.__setattr__(spec, name, option.check(value, name))
        _check_together(spec)
    except (InvalidType, InvalidValue) as error:
        raise type(error)(f"task {path}: {error}") from None


def _check_together(spec: TaskSpec) -> None:
    if (spec.move_after is None) != (spec.move_to is None):
        missing = "move_to" if spec.move_to is None else "move_after"
        raise InvalidValue(f"{missing} is missing: move_after and move_to go together. Give both, or neither.")
    if spec.move_to is not None and spec.ordering_key is not None:
        raise InvalidValue(
            "move_to cannot be combined with ordering_key: jobs of a key are ordered within a queue. Remove one."
        )
    if spec.move_after is not None and spec.max_attempts is not None and spec.move_after >= spec.max_attempts:
        raise InvalidValue(f"{too_few(spec.move_after, spec.max_attempts)}. Lower move_after, or raise max_attempts.")
    if spec.concurrency_key is not None and spec.concurrency_limit is None and spec.rate_limit is None:
        raise InvalidValue(
            "concurrency_key is given without a limit, so it would limit nothing. Give concurrency_limit or rate_limit."
        )
    if spec.on_conflict == "replace" and not (spec.unique or spec.unique_seconds or spec.dedupe_key is not None):
        raise InvalidValue(
            "on_conflict is given without a key, so no job could be replaced. Nothing was written; give dedupe_key, "
            "unique or unique_seconds."
        )
    limit, wait = spec.retry_until_seconds, spec.backoff
    if limit is not None and wait is not None and (least := least_wait(wait)) > limit:
        raise InvalidValue(f"{too_late(limit, least)}. Raise retry_until_seconds, or lower the back-off.")
    only: Any = spec.retry_on
    never: Any = spec.no_retry_on
    if only and never and all(issubclass(kind, never) for kind in only):
        raise InvalidValue(
            "no_retry_on excludes every class of retry_on, so nothing is retried. Remove one, or set max_attempts=1."
        )


def too_few(after: int, most: int) -> str:
    """The problem of a move_after that no job reaches."""
    return f"move_after is {after}, and its jobs are FAILED before they move: max_attempts is {most}"


def too_late(limit: float, least: float) -> str:
    """The problem of a retry_until_seconds that is over before the first retry."""
    return f"retry_until_seconds is {limit:g}, and no retry begins so early: the first wait is at least {least:g} s"
