"""The retry policy of a task, checked where it is given: one that cannot work is refused with the task's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction

from jobqueue.backoff import checked_wait, default_backoff, least_wait, takes_task_result
from jobqueue.conf import Settings
from jobqueue.db import Problem
from jobqueue.durations import parse_rate, to_seconds
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures.dependencies import check_dependency
from jobqueue.tasks import registry
from jobqueue.tasks.uniqueness import checked_uniqueness
from jobqueue.validation import check_int, check_queue

#: what happens to a job whose process died or whose lease ran out
ON_CRASH = ("retry", "fail", "hold")


def checked_policy(task: Any) -> Mapping[str, object]:
    """The fields of a task's retry policy, as they are stored. Raises InvalidType and InvalidValue."""
    try:
        found = _values(task)
        _check_together(task, found)
    except (InvalidType, InvalidValue) as error:
        raise type(error)(f"task {task.module_path}: {error}") from None
    return found


def check_own_queue(task: Any) -> None:
    """Raise InvalidValue for a task that moves its jobs to the queue in which they are."""
    if task.move_to is not None and task.move_to == task.queue_name:
        raise InvalidValue(
            f"task {task.module_path}: move_to is {task.move_to!r}, the task's own queue, so nothing would move. Name "
            "another queue, or remove move_after and move_to."
        )


def policy_problems(settings: Settings) -> Iterator[Problem]:
    """E022: the policy of a task cannot work with the settings that hold where the task gives no value."""
    for path in registry.names()[0]:
        task = registry.find_task(path)
        if task is None or task.module_path != path:
            continue
        after, limit = getattr(task, "move_after", None), getattr(task, "retry_until_seconds", None)
        most = settings.queue_max_attempts(task.queue_name)
        if after is not None and getattr(task, "max_attempts", None) is None and after >= most:
            yield Problem(
                "E022",
                f"task {path}: {_too_few(after, most)} by JOBQUEUE.",
                "Lower move_after, or give the task a larger max_attempts.",
            )
        least = least_wait(default_backoff(settings))
        if limit is not None and getattr(task, "backoff", None) is None and least > limit:
            yield Problem(
                "E022",
                f"task {path}: {_too_late(limit, least)} by JOBQUEUE.",
                "Raise retry_until_seconds, or give the task a backoff.",
            )


def _too_few(after: int, most: int) -> str:
    return f"move_after is {after}, and its jobs are FAILED before they move: max_attempts is {most}"


def _too_late(limit: float, least: float) -> str:
    return f"retry_until_seconds is {limit:g}, and no retry begins so early: the first wait is at least {least:g} s"


def _values(task: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    if task.backoff is not None:
        found["backoff"] = wait = checked_wait(task.backoff)
        if callable(wait):
            _check_function(wait)
    if task.max_attempts is not None:
        check_int(task.max_attempts, "max_attempts", 1)
    if task.retry_until_seconds is not None:
        found["retry_until_seconds"] = to_seconds(task.retry_until_seconds, "retry_until_seconds")
    if task.result_ttl_seconds is not None:
        found["result_ttl_seconds"] = to_seconds(task.result_ttl_seconds, "result_ttl_seconds")
    if task.move_after is not None:
        check_int(task.move_after, "move_after", 1)
    if task.move_to is not None:
        check_queue(task.move_to)
    if task.dependency is not None:
        check_dependency(task.dependency)
    if task.concurrency_limit is not None:
        check_int(task.concurrency_limit, "concurrency_limit", 1)
    if task.rate_limit is not None:
        parse_rate(task.rate_limit, "rate_limit")
    if task.on_crash not in ON_CRASH:
        raise InvalidValue(f"on_crash must be one of {', '.join(ON_CRASH)}, got {task.on_crash!r:.40}.")
    found |= checked_uniqueness(task)
    for name in ("retry_on", "no_retry_on"):
        # A tuple: isinstance() needs one, and tasks are hashable.
        found[name] = _classes(getattr(task, name), name)
    return found


def _check_together(task: Any, found: Mapping[str, Any]) -> None:
    if (task.move_after is None) != (task.move_to is None):
        missing = "move_to" if task.move_to is None else "move_after"
        raise InvalidValue(f"{missing} is missing: move_after and move_to go together. Give both, or neither.")
    if task.move_to is not None and task.ordering_key is not None:
        raise InvalidValue(
            "move_to cannot be combined with ordering_key: jobs of a key are ordered within a queue. Remove one."
        )
    if task.move_after is not None and task.max_attempts is not None and task.move_after >= task.max_attempts:
        raise InvalidValue(f"{_too_few(task.move_after, task.max_attempts)}. Lower move_after, or raise max_attempts.")
    if task.concurrency_key is not None and task.concurrency_limit is None and task.rate_limit is None:
        raise InvalidValue(
            "concurrency_key is given without a limit, so it would limit nothing. Give concurrency_limit or rate_limit."
        )
    limit, wait = found.get("retry_until_seconds"), found.get("backoff")
    if limit is not None and wait is not None and (least := least_wait(wait)) > limit:
        raise InvalidValue(f"{_too_late(limit, least)}. Raise retry_until_seconds, or lower the back-off.")
    only, never = found["retry_on"], found["no_retry_on"]
    if only and never and all(issubclass(kind, never) for kind in only):
        raise InvalidValue(
            "no_retry_on excludes every class of retry_on, so nothing is retried. Remove one, or set max_attempts=1."
        )


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


def _classes(given: Any, what: str) -> tuple[type[BaseException], ...] | None:
    if given is None:
        return None
    found = (given,) if isinstance(given, type) else given
    if not isinstance(found, (tuple, list, set, frozenset)) or not found:
        raise InvalidType(f"{what} must be an exception class or several, got {given!r:.80}.")
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidType(f"{what} must be exception classes, got {kind!r:.80}.")
    return tuple(found)
